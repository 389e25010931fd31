//go:build linux

package agent

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	shareLabels   = []string{"share", "class"}
	processLabels = []string{"share", "pid"}

	descMemoryLimit = prometheus.NewDesc("dxpu_share_memory_limit_bytes", "Limit of the memory of a share on each of its GPUs.", shareLabels, nil)
	descMemoryUsed  = prometheus.NewDesc("dxpu_share_memory_used_bytes", "Memory that a share uses on all its GPUs.", shareLabels, nil)
	descCompute     = prometheus.NewDesc("dxpu_share_compute_ratio", "Compute that a share is to get, as a part of a GPU.", shareLabels, nil)
	descProcesses   = prometheus.NewDesc("dxpu_share_processes", "Processes of a share.", shareLabels, nil)
	descLaunches    = prometheus.NewDesc("dxpu_share_launches_total", "Kernels that the processes of a share launched.", shareLabels, nil)
	descTime        = prometheus.NewDesc("dxpu_share_gpu_seconds_total", "Time that the launches of a share took.", shareLabels, nil)
	descPermits     = prometheus.NewDesc("dxpu_share_permits_total", "Launches of a share that waited for an answer of their own: the other ones went by credit, or the policy asks for none.", shareLabels, nil)
	descRefusals    = prometheus.NewDesc("dxpu_share_memory_refusals_total", "Requests of a share for memory that it did not get.", shareLabels, nil)
	descEvictions   = prometheus.NewDesc("dxpu_share_evictions_total", "Times that the programs of a share were asked to end, by the policy or for an error.", shareLabels, nil)
	descFailures    = prometheus.NewDesc("dxpu_share_failures_total", "Errors of the GPU that the processes of a share reported.", shareLabels, nil)

	descProcessMemory   = prometheus.NewDesc("dxpu_share_process_memory_bytes", "Memory of a process on all GPUs of its share.", processLabels, nil)
	descProcessLaunches = prometheus.NewDesc("dxpu_share_process_launches_total", "Kernels that a process launched.", processLabels, nil)
	descProcessTime     = prometheus.NewDesc("dxpu_share_process_gpu_seconds_total", "Time that the launches of a process took.", processLabels, nil)

	descGPUMemory      = prometheus.NewDesc("dxpu_share_gpu_memory_bytes", "Memory of a GPU.", []string{"gpu"}, nil)
	descGPUMemoryGiven = prometheus.NewDesc("dxpu_share_gpu_memory_given_bytes", "Memory of a GPU that its shares were given.", []string{"gpu"}, nil)
	descGPUMemoryUsed  = prometheus.NewDesc("dxpu_share_gpu_memory_used_bytes", "Memory of a GPU that its shares use.", []string{"gpu"}, nil)

	descGPUErrors  = prometheus.NewDesc("dxpu_share_gpu_errors_total", "Errors of a GPU in the kernel log, by XID.", []string{"gpu", "xid"}, nil)
	descGPUService = prometheus.NewDesc("dxpu_share_gpu_in_service", "1 if a GPU is in service.", []string{"gpu"}, nil)

	descWaiting    = prometheus.NewDesc("dxpu_share_waiting_launches", "Launches of a share that wait for a permit.", shareLabels, nil)
	descWrong      = prometheus.NewDesc("dxpu_share_wrong_messages", "Messages that did not fit, of the processes that a share has now.", shareLabels, nil)
	descSuppressed = prometheus.NewDesc("dxpu_log_suppressed_total", "Lines beyond the limit of their cause and share that the log does not have.", nil, nil)

	descViolations = prometheus.NewDesc("dxpu_share_policy_violations_total", "Events that the policy found wrong; an error of the agent.", nil, nil)
)

// Describe implements prometheus.Collector.
func (a *Agent) Describe(c chan<- *prometheus.Desc) { prometheus.DescribeByCollect(a, c) }

// Collect implements prometheus.Collector.
func (a *Agent) Collect(c chan<- prometheus.Metric) {
	put := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		c <- prometheus.MustNewConstMetric(d, t, v, labels...)
	}
	for _, s := range a.Shares() {
		put(descMemoryLimit, prometheus.GaugeValue, float64(s.Memory), s.ID, s.Class)
		put(descMemoryUsed, prometheus.GaugeValue, float64(s.Used), s.ID, s.Class)
		put(descCompute, prometheus.GaugeValue, float64(s.Compute)/1e6, s.ID, s.Class)
		put(descProcesses, prometheus.GaugeValue, float64(len(s.Processes)), s.ID, s.Class)
		put(descLaunches, prometheus.CounterValue, float64(s.Launches), s.ID, s.Class)
		put(descTime, prometheus.CounterValue, float64(s.GPUTime), s.ID, s.Class)
		put(descPermits, prometheus.CounterValue, float64(s.Permits), s.ID, s.Class)
		put(descRefusals, prometheus.CounterValue, float64(s.Refusals), s.ID, s.Class)
		put(descEvictions, prometheus.CounterValue, float64(s.Evictions), s.ID, s.Class)
		put(descFailures, prometheus.CounterValue, float64(s.Failures), s.ID, s.Class)
		waiting, wrong := 0, uint64(0)
		for _, p := range s.Processes {
			waiting, wrong = waiting+p.Waiting, wrong+p.Wrong
		}
		put(descWaiting, prometheus.GaugeValue, float64(waiting), s.ID, s.Class)
		put(descWrong, prometheus.GaugeValue, float64(wrong), s.ID, s.Class)
		seen := map[int]bool{} // a process may have two connections, and its ID may be unknown
		for _, p := range s.Processes {
			if p.PID == 0 || seen[p.PID] {
				continue
			}
			seen[p.PID] = true
			pid := strconv.Itoa(p.PID)
			put(descProcessMemory, prometheus.GaugeValue, float64(p.Memory), s.ID, pid)
			put(descProcessLaunches, prometheus.CounterValue, float64(p.Launches), s.ID, pid)
			put(descProcessTime, prometheus.CounterValue, float64(p.GPUTime), s.ID, pid)
		}
	}
	put(descSuppressed, prometheus.CounterValue, float64(a.lines.Suppressed()))
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, p := range a.patients {
		name, up := a.config.Broker.GPUs[i].Name, 1.0
		if a.broker.Stopped(i) != "" {
			up = 0
		}
		put(descGPUService, prometheus.GaugeValue, up, name)
		used, given := a.broker.MemoryOf(i)
		put(descGPUMemory, prometheus.GaugeValue, float64(a.config.Broker.GPUs[i].Device.Memory), name)
		put(descGPUMemoryGiven, prometheus.GaugeValue, float64(given), name)
		put(descGPUMemoryUsed, prometheus.GaugeValue, float64(used), name)
		for code, n := range p.errors {
			put(descGPUErrors, prometheus.CounterValue, float64(n), name, strconv.FormatUint(uint64(code), 10))
		}
	}
	n := a.broker.Violations()
	put(descViolations, prometheus.CounterValue, float64(n))
}
