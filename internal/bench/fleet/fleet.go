// Package fleet measures the manager alone, with many thousand simulated hosts and
// boxes. "dxpu bench manager" prints the report.
//
// The manager is a separate process, so that its memory and processor time can be
// measured. The nodes run in the process of the benchmark (package simulated) and talk
// to it over the loopback interface.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/dxpu-project/dxpu/internal/agent/simulated"
)

// Spec is a pool. Zero values stand for the defaults.
type Spec struct {
	Hosts        int // default 10,000
	SlotsPerHost int // default 16
	Boxes        int // default 12,500
	GPUsPerBox   int // default 8
	// Leases is the number of leases, of one GPU each; default 10,000.
	Leases int
	AtOnce int // concurrent callers, and concurrently enrolling nodes; default 64
	// NodesPerConnection is the number of nodes that share a connection; default 4.
	NodesPerConnection int
	// Dir is a directory for the embedded etcd that keeps the state; empty: memory.
	Dir string
	// Heartbeat is the longest interval between reports of a node; 0: the manager's
	// default.
	Heartbeat time.Duration
	Idle      time.Duration // duration of the measurement of the idle manager; default 20 s
	Timeout   time.Duration // of each part; default 5 minutes
	// Child is the command line with which this program runs Serve. Required.
	Child []string
	// Profile is the beginning of the file names of the manager's profiles: of its
	// processor time in each part and of its heap after it; empty: none.
	Profile  string
	Progress func(format string, args ...any) // nil: none
}

func (s *Spec) setDefaults() error {
	s.Hosts = cmp.Or(s.Hosts, 10_000)
	s.SlotsPerHost = cmp.Or(s.SlotsPerHost, 16)
	s.Boxes = cmp.Or(s.Boxes, 12_500)
	s.GPUsPerBox = cmp.Or(s.GPUsPerBox, 8)
	s.Leases = cmp.Or(s.Leases, min(10_000, s.gpus()))
	s.AtOnce = cmp.Or(s.AtOnce, 64)
	s.NodesPerConnection = cmp.Or(s.NodesPerConnection, 4)
	s.Idle = cmp.Or(s.Idle, 20*time.Second)
	s.Timeout = cmp.Or(s.Timeout, 5*time.Minute)
	if s.Progress == nil {
		s.Progress = func(string, ...any) {}
	}
	if most := min(s.gpus(), s.Hosts*s.SlotsPerHost); s.Leases > most {
		return fmt.Errorf("bench: %d leases of one GPU: the pool has %d GPUs and %d slots of hosts", s.Leases, s.gpus(), s.Hosts*s.SlotsPerHost)
	}
	return nil
}

// stay returns the number of leases that remain until the restart of the manager.
func (s *Spec) stay() int { return (s.Leases + 9) / 10 }

func (s *Spec) gpus() int { return s.Boxes * s.GPUsPerBox }

// Report is the result of Run. Times are those that the callers see.
type Report struct {
	Processors         int    `json:"processors"`
	Go                 string `json:"go"`
	Hosts              int    `json:"hosts"`
	Boxes              int    `json:"boxes"`
	GPUs               int    `json:"gpus"`
	Leases             int    `json:"leases"`
	AtOnce             int    `json:"at_once"`
	NodesPerConnection int    `json:"nodes_per_connection"`
	Store              string `json:"store"`

	// Enroll lasts from the first call of a node until the manager reports all GPUs
	// as free and all hosts as connected.
	Enroll Work `json:"enroll"`
	// Idle is measured with all leases attached and no calls except reports.
	Idle        Usage   `json:"idle"`
	IdleReports float64 `json:"idle_reports_per_second"`
	Empty       Usage   `json:"empty"` // before the first node
	Enrolled    Usage   `json:"enrolled"`

	Create Work `json:"create"` // calls of CreateLease
	Attach Work `json:"attach"` // from the first call until every lease is active
	// Detach lasts from the first DeleteLease until the leases are released: nine of
	// ten, the others stay for the restart.
	Detach Work `json:"detach"`
	// Calls are sequential calls without other load.
	Calls []Latency `json:"calls"`

	// Restart lasts from the end of the manager until the next one knows all nodes
	// and all attached GPUs; RestartServesNS until the next one serves.
	RestartServesNS time.Duration `json:"restart_serves_ns"`
	Restart         Work          `json:"restart"`
}

// Work is the time of Count operations and their use of the manager.
type Work struct {
	Count     int           `json:"count"`
	TookNS    time.Duration `json:"took_ns"`
	PerSecond float64       `json:"per_second"`
	// Processor is the manager's processor time for each operation.
	Processor time.Duration `json:"processor_ns_each"`
}

// Latency holds the times of calls of a kind.
type Latency struct {
	Name  string        `json:"name"`
	Count int           `json:"count"`
	P50NS time.Duration `json:"p50_ns"`
	P99NS time.Duration `json:"p99_ns"`
}

// Run measures. With an error it returns the report up to there.
func Run(ctx context.Context, spec Spec) (r *Report, err error) {
	if err := spec.setDefaults(); err != nil {
		return nil, err
	}
	r = &Report{
		Processors: runtime.GOMAXPROCS(0), Go: runtime.Version(), Hosts: spec.Hosts, Boxes: spec.Boxes, GPUs: spec.gpus(),
		Leases: spec.Leases, AtOnce: spec.AtOnce, NodesPerConnection: spec.NodesPerConnection, Store: "memory",
	}
	if spec.Dir != "" {
		r.Store = "embedded etcd"
	}
	c := &run{spec: spec, report: r}
	if c.child, err = startChild(ctx, &spec); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, c.child.Stop()) }()
	c.pool = newPoolClient(c.child.url, spec.AtOnce)
	c.nodes = simulated.New(simulated.Spec{
		Manager: c.child.url, JoinToken: c.child.token, Version: "bench",
		Hosts: spec.Hosts, SlotsPerHost: spec.SlotsPerHost, Boxes: spec.Boxes, GPUsPerBox: spec.GPUsPerBox,
		AtOnce: spec.AtOnce, NodesPerConnection: spec.NodesPerConnection,
		Progress: func(format string, args ...any) { spec.Progress("enrol: "+format, args...) },
	})
	defer c.nodes.Stop()
	return r, c.all(ctx)
}

// run is a measurement in progress.
type run struct {
	spec   Spec
	report *Report
	child  *child
	pool   *poolClient
	nodes  *simulated.Nodes
	leases []string
}

func (c *run) all(ctx context.Context) error {
	for _, part := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"enrol", c.enrol}, {"calls", c.calls}, {"attach", c.attach}, {"idle", c.idle}, {"detach", c.detach}, {"restart", c.restart},
	} {
		c.spec.Progress("%s: %d hosts, %d boxes", part.name, c.spec.Hosts, c.spec.Boxes)
		ctx, cancel := context.WithTimeoutCause(ctx, c.spec.Timeout, fmt.Errorf("took longer than %v", c.spec.Timeout))
		err := c.profiled(part.name, func() error { return part.do(ctx) })
		cancel()
		if err != nil {
			return fmt.Errorf("bench: %s: %w", part.name, err)
		}
	}
	return nil
}

func (c *run) profiled(part string, do func() error) error {
	if c.spec.Profile == "" {
		return do()
	}
	if _, err := c.child.call(request{Profile: c.spec.Profile + "." + part + ".pprof"}); err != nil {
		return err
	}
	err := do()
	_, stopErr := c.child.call(request{EndProfile: true})
	return errors.Join(err, stopErr)
}

// work calls do, which makes n operations, and records their time and use of the
// manager.
func (c *run) work(n int, w *Work, do func() error) error {
	before, err := c.child.usage(false)
	if err != nil {
		return err
	}
	at := time.Now()
	if err := do(); err != nil {
		return err
	}
	w.Count, w.TookNS = n, time.Since(at)
	after, err := c.child.usage(false)
	w.PerSecond = float64(n) / w.TookNS.Seconds()
	w.Processor = (after.Processor - before.Processor) / time.Duration(max(n, 1))
	return err
}

func (c *run) enrol(ctx context.Context) (err error) {
	r := c.report
	if r.Empty, err = c.child.usage(true); err != nil {
		return err
	}
	err = c.work(c.spec.Hosts+c.spec.Boxes, &r.Enroll, func() error {
		if err := c.nodes.Start(ctx); err != nil {
			return err
		}
		return c.pool.await(ctx, c.spec.whole(0))
	})
	if err != nil {
		return err
	}
	r.Enrolled, err = c.child.usage(true)
	return err
}

// idle measures the manager without calls except reports.
func (c *run) idle(ctx context.Context) (err error) {
	before, err := c.child.usage(true)
	if err != nil {
		return err
	}
	reports, at := c.nodes.Reports(), time.Now()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(c.spec.Idle):
	}
	took := time.Since(at)
	c.report.IdleReports = float64(c.nodes.Reports()-reports) / took.Seconds()
	u, err := c.child.usage(false)
	u.Heap = before.Heap
	u.Share = float64(u.Processor-before.Processor) / float64(took)
	c.report.Idle = u
	return err
}

func (c *run) restart(ctx context.Context) error {
	r := c.report
	return c.work(c.spec.Hosts+c.spec.Boxes, &r.Restart, func() error {
		at := time.Now()
		if _, err := c.child.call(request{Restart: true}); err != nil {
			return err
		}
		r.RestartServesNS = time.Since(at)
		return c.pool.await(ctx, c.spec.whole(c.spec.stay()))
	})
}
