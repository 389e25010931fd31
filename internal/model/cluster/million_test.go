package cluster

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"time"
)

// BenchmarkMillionGPUs places jobs in a pool of a million GPUs, which is four fifths full,
// and ends one for each. An operation is a placement and a removal. cpu-us/op is the
// processor time of one: that of the collector is in it.
func BenchmarkMillionGPUs(b *testing.B) {
	nodes := make([]Node, 125_000)
	for i := range nodes {
		nodes[i] = Node{MilliCPU: 96_000, MemoryMiB: 768 << 10, GPUs: 8, Model: []string{"A", "A", "B", "C"}[i%4]}
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	pods := make([]Pod, 1000)
	for i := range pods {
		n := []int{1, 1, 1, 1, 2, 2, 4, 8}[rnd.IntN(8)]
		pods[i] = Pod{MilliCPU: int64(n) * 8000, MemoryMiB: int64(n) * 32 << 10, GPUs: n, MilliGPU: Milli, Models: []string{"", "A", "B", "A|C"}[rnd.IntN(4)]}
	}
	type job struct {
		pod *Pod
		at  placed
	}
	c := newPool(nodes, PoolOptions{})
	var running []job
	gpus := 0
	start := func() {
		p := &pods[rnd.IntN(len(pods))]
		if at, ok := c.place(p); ok {
			running = append(running, job{p, at})
			gpus += p.GPUs
		}
	}
	for gpus < 800_000 {
		start()
	}
	before := processorTime(b)
	for b.Loop() {
		start()
		for gpus > 800_000 {
			i := rnd.IntN(len(running))
			j := running[i]
			running[i] = running[len(running)-1]
			running = running[:len(running)-1]
			c.remove(j.pod, j.at)
			gpus -= j.pod.GPUs
		}
	}
	b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/1000/float64(b.N), "cpu-us/op")
}

// processorTime returns the processor time that the process has taken.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
