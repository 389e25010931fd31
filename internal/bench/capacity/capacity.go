// Package capacity measures the capacity of a pool: GPUs attached at the same time
// with real proxies and links over UDP, and the time of an attach. "dxpu bench
// capacity" and "dxpu bench attach" print the reports.
package capacity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/dxpu-project/dxpu/internal/bench/process"
	"github.com/dxpu-project/dxpu/internal/hostproxy"
	"github.com/dxpu-project/dxpu/internal/pool/manager"
)

// Spec is a pool. Zero values stand for the defaults.
type Spec struct {
	Boxes      int           // default 64
	GPUsPerBox int           // default 8
	Hosts      int           // default 64; together they have a slot for each GPU
	Store      manager.Store // nil: memory
	Heartbeat  time.Duration // of the nodes; default 250 ms
	AtOnce     int           // concurrent callers; default 16
	Idle       time.Duration // duration of the measurement of the idle processor; default 5 s
	// Timeout bounds each part; default 5 minutes.
	Timeout  time.Duration
	Progress func(format string, args ...any) // nil: none
}

func (s *Spec) setDefaults() error {
	s.Boxes = cmp.Or(s.Boxes, 64)
	s.GPUsPerBox = cmp.Or(s.GPUsPerBox, 8)
	s.Hosts = cmp.Or(s.Hosts, 64)
	s.AtOnce = cmp.Or(s.AtOnce, 16)
	if s.Store == nil {
		s.Store = &manager.MemoryStore{}
	}
	s.Heartbeat = cmp.Or(s.Heartbeat, 250*time.Millisecond)
	s.Idle = cmp.Or(s.Idle, 5*time.Second)
	s.Timeout = cmp.Or(s.Timeout, 5*time.Minute)
	if s.Progress == nil {
		s.Progress = func(string, ...any) {}
	}
	if s.slotsPerHost() > hostproxy.MaxSlots {
		return fmt.Errorf("bench: %d GPUs on %d hosts: a host has at most %d slots", s.gpus(), s.Hosts, hostproxy.MaxSlots)
	}
	return nil
}

func (s *Spec) gpus() int         { return s.Boxes * s.GPUsPerBox }
func (s *Spec) slotsPerHost() int { return (s.gpus() + s.Hosts - 1) / s.Hosts }

// Report is the result of Run.
type Report struct {
	Processors int    `json:"processors"`
	Go         string `json:"go"`
	Boxes      int    `json:"boxes"`
	Hosts      int    `json:"hosts"`
	GPUs       int    `json:"gpus"`

	StartNS   time.Duration `json:"start_ns"`   // until the manager knew all GPUs
	AttachNS  time.Duration `json:"attach_ns"`  // from the first call until the last lease is active
	DriveNS   time.Duration `json:"drive_ns"`   // register reads and verified copies of all GPUs
	ReleaseNS time.Duration `json:"release_ns"` // until all GPUs were clean and free again
	AtOnce    int           `json:"at_once"`    // concurrent callers
	Parts     []Part        `json:"parts"`      // of an attach

	MemoryPerGPU  float64 `json:"memory_per_gpu"`        // bytes of both proxies and the manager for an attached GPU: objects and stacks
	MemoryEmpty   uint64  `json:"memory_empty"`          // bytes of all proxies, GPUs and hosts with nothing attached
	RSS           uint64  `json:"rss"`                   // bytes of the process with all attached
	IdleEmpty     float64 `json:"idle_processors_empty"` // processors, with nothing attached
	IdleAttached  float64 `json:"idle_processors"`       // processors, with all attached and unused
	Goroutines    int     `json:"goroutines"`
	PerAttachment float64 `json:"goroutines_per_gpu"`
}

// Run attaches all GPUs of a pool at the same time and uses each of them. With an
// error it returns the report up to there.
func Run(ctx context.Context, spec Spec) (r *Report, err error) {
	if err := spec.setDefaults(); err != nil {
		return nil, err
	}
	r = &Report{
		Processors: runtime.NumCPU(), Go: runtime.Version(), Boxes: spec.Boxes, Hosts: spec.Hosts, GPUs: spec.gpus(), AtOnce: spec.AtOnce,
	}
	c := &run{spec: spec, report: r}
	err = c.all(ctx)
	if c.world != nil {
		err = errors.Join(err, c.world.close())
	}
	return r, err
}

// run is a measurement in progress.
type run struct {
	spec    Spec
	report  *Report
	world   *world
	watcher *watcher
	made    []*attachment
	empty   usage // with nothing attached
}

func (c *run) all(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	r := c.report
	for _, part := range []struct {
		name string
		took *time.Duration
		do   func(context.Context) error
	}{
		{"start", &r.StartNS, func(ctx context.Context) (err error) {
			c.world, err = newWorld(ctx, c.spec)
			return err
		}},
		{"measure the empty pool", nil, c.measureEmpty},
		{"attach", &r.AttachNS, func(part context.Context) (err error) {
			if c.watcher, err = c.world.watch(ctx); err != nil {
				return err
			}
			c.made, err = c.world.attachAll(part, c.watcher, c.spec.gpus(), c.spec.AtOnce)
			return err
		}},
		{"measure", nil, c.measure},
		{"drive", &r.DriveNS, func(ctx context.Context) error { return c.world.driveAll(ctx, c.made) }},
		{"release", &r.ReleaseNS, func(ctx context.Context) error {
			if err := c.world.release(ctx, c.watcher, c.made); err != nil {
				return err
			}
			return c.world.await(ctx)
		}},
	} {
		c.spec.Progress("%s: %d GPUs", part.name, c.spec.gpus())
		at := time.Now()
		ctx, cancel := context.WithTimeoutCause(ctx, c.spec.Timeout, fmt.Errorf("took longer than %v", c.spec.Timeout))
		err := part.do(ctx)
		cancel()
		if part.took != nil {
			*part.took = time.Since(at)
		}
		if err != nil {
			return fmt.Errorf("bench: %s: %w", part.name, err)
		}
	}
	return nil
}

func (c *run) measureEmpty(ctx context.Context) (err error) {
	if c.empty, err = measureUsage(); err != nil {
		return err
	}
	c.report.MemoryEmpty = c.empty.memory
	c.report.IdleEmpty, err = idle(ctx, c.spec.Idle)
	return err
}

// measure measures the attached GPUs while no caller uses them.
func (c *run) measure(ctx context.Context) error {
	if err := c.world.details(ctx, c.made); err != nil {
		return err
	}
	r, n := c.report, float64(len(c.made))
	r.Parts = partsOf(c.made)
	now, err := measureUsage()
	if err != nil {
		return err
	}
	r.MemoryPerGPU = max(0, float64(now.memory)-float64(c.empty.memory)) / n
	r.Goroutines, r.PerAttachment = now.goroutines, max(0, float64(now.goroutines-c.empty.goroutines)/n)
	if r.RSS, err = process.Resident(); err != nil {
		return err
	}
	r.IdleAttached, err = idle(ctx, c.spec.Idle)
	return err
}
