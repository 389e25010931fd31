// Package store measures the durable leases per second of a manager with embedded
// etcd, beside bare puts on the same etcd in the same run.
package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/internal/pool/etcdstore"
	"github.com/dxpu-project/dxpu/internal/pool/manager"
	"github.com/dxpu-project/dxpu/internal/quantile"
)

// Spec describes a measurement.
type Spec struct {
	// Dir is an empty directory for the state.
	Dir string
	// Leases is the number of leases of one GPU in each round, made by AtOnce
	// callers. The bare puts have the same number and callers.
	Leases, AtOnce int
	// Rounds is the number of rounds, each of leases and then puts.
	Rounds int
	// Progress, if set, gets a line at the start of each step.
	Progress func(format string, args ...any)
}

// Report is the result. Rates are medians of the rounds.
type Report struct {
	Go         string `json:"go"`
	Processors int    `json:"processors"`
	AtOnce     int    `json:"at_once"`
	Rounds     int    `json:"rounds"`
	Leases     Rate   `json:"leases"`
	Puts       Rate   `json:"puts"`
	// Ratio is the leases per second divided by the puts per second.
	Ratio float64 `json:"ratio"`
	// PutBytes is the size of a put's value, the bytes that the manager stores for a
	// lease.
	PutBytes int `json:"put_bytes"`
	// LeasesPerWrite is the mean number of leases in a transaction of etcd.
	LeasesPerWrite float64 `json:"leases_per_write"`
}

// Rate is the rate and the times of one kind of call, as its callers see them.
type Rate struct {
	Count     int           `json:"count"`
	PerSecond float64       `json:"per_second"`
	Each      []float64     `json:"per_second_each"`
	P50NS     time.Duration `json:"p50_ns"`
	P99NS     time.Duration `json:"p99_ns"`
	times     []time.Duration
}

func (r *Rate) finish() {
	r.PerSecond = quantile.Of(r.Each, 0.5)
	r.Count = len(r.times)
	r.P50NS, r.P99NS = quantile.Of(r.times, 0.5), quantile.Of(r.times, 0.99)
}

const (
	joinToken = "token-of-the-benchmark"
	// slotsPerNode is the number of GPUs of a box and of slots of a host: few nodes
	// are enough for many leases.
	slotsPerNode = 64
	// calm is longer than the benchmark: its nodes report once and stay connected, and
	// attach nothing.
	calm = 24 * time.Hour
)

// counter is an etcdstore that counts its writes.
type counter struct {
	*etcdstore.Store
	bytes, writes atomic.Int64
}

// Commit implements manager.Store.
func (c *counter) Commit(ctx context.Context, put map[string][]byte, remove []string) error {
	n := 0
	for k, v := range put {
		n += len(k) + len(v)
	}
	c.bytes.Add(int64(n))
	c.writes.Add(1)
	return c.Store.Commit(ctx, put, remove)
}

// Run measures. It waits for the end of everything that it started.
func Run(ctx context.Context, spec Spec) (r *Report, err error) {
	etcd, err := etcdstore.Open(ctx, etcdstore.Options{Dir: spec.Dir})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, etcd.Close()) }()
	store := &counter{Store: etcd}
	leads := make(chan struct{})
	lead := sync.OnceFunc(func() { close(leads) }) // the manager may lose the lead and win it again
	m, err := manager.New(ctx, manager.Config{
		JoinToken: joinToken, Store: store, Open: manager.OpenLoopback, LostAfter: calm, AttachTimeout: calm,
		OnLead: func(context.Context) error { lead(); return nil },
	})
	if err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	srv := &http.Server{Handler: m.Handler(), ReadHeaderTimeout: time.Minute}
	running, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(l) }) // until it is closed
	ended := make(chan error, 1)
	wg.Go(func() {
		ended <- m.Run(running)
		stop() // ends the wait for the lead
	})
	defer func() {
		stop()
		err = errors.Join(err, srv.Close(), <-ended)
		wg.Wait()
	}()
	select {
	case <-leads:
	case <-running.Done():
		return nil, running.Err()
	}
	return (&run{spec: spec, store: store, url: "http://" + l.Addr().String()}).all(ctx)
}

// run is a measurement in progress.
type run struct {
	spec  Spec
	store *counter
	url   string
}

func (r *run) all(ctx context.Context) (*Report, error) {
	transport := &http.Transport{MaxIdleConnsPerHost: r.spec.AtOnce}
	defer transport.CloseIdleConnections()
	hc := &http.Client{Transport: transport}
	r.progress("nodes enrol")
	if err := r.enrol(ctx, dxpuv1connect.NewNodeServiceClient(hc, r.url)); err != nil {
		return nil, err
	}
	pool := dxpuv1connect.NewPoolServiceClient(hc, r.url)
	out := &Report{Go: runtime.Version(), Processors: runtime.GOMAXPROCS(0), AtOnce: r.spec.AtOnce, Rounds: r.spec.Rounds}
	bytes, writes := r.store.bytes.Load(), r.store.writes.Load()
	for i := range r.spec.Rounds {
		r.progress("round %d of %d: leases", i+1, r.spec.Rounds)
		if err := r.time(ctx, &out.Leases, func(ctx context.Context, _ int) error {
			_, err := pool.CreateLease(ctx, connect.NewRequest(&dxpuv1.CreateLeaseRequest{Spec: &dxpuv1.LeaseSpec{Count: 1}}))
			return err
		}); err != nil {
			return nil, fmt.Errorf("create a lease: %w", err)
		}
		if i == 0 {
			out.PutBytes = int(r.store.bytes.Load()-bytes) / r.spec.Leases
		}
		r.progress("round %d of %d: puts", i+1, r.spec.Rounds)
		value := strings.Repeat("x", out.PutBytes)
		if err := r.time(ctx, &out.Puts, func(ctx context.Context, n int) error {
			_, err := r.store.Client().Put(ctx, fmt.Sprintf("/bench/%d/%d", i, n), value)
			return err
		}); err != nil {
			return nil, fmt.Errorf("put: %w", err)
		}
	}
	out.Leases.finish()
	out.Puts.finish()
	out.Ratio = out.Leases.PerSecond / out.Puts.PerSecond
	out.LeasesPerWrite = float64(out.Leases.Count) / float64(max(r.store.writes.Load()-writes, 1))
	return out, nil
}

func (r *run) progress(format string, args ...any) {
	if r.spec.Progress != nil {
		r.spec.Progress(format, args...)
	}
}

// enrol makes a pool with a GPU and a slot for every lease.
func (r *run) enrol(ctx context.Context, api dxpuv1connect.NodeServiceClient) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(r.spec.AtOnce)
	for i := range (r.spec.Leases*r.spec.Rounds + slotsPerNode - 1) / slotsPerNode {
		g.Go(func() error { return node(ctx, api, dxpuv1.NodeKind_NODE_KIND_BOX, fmt.Sprintf("box-%d", i)) })
		g.Go(func() error { return node(ctx, api, dxpuv1.NodeKind_NODE_KIND_HOST, fmt.Sprintf("host-%d", i)) })
	}
	return g.Wait()
}

// node enrols a node that reports once.
func node(ctx context.Context, api dxpuv1connect.NodeServiceClient, kind dxpuv1.NodeKind, name string) error {
	res, err := api.Enroll(ctx, connect.NewRequest(&dxpuv1.EnrollRequest{JoinToken: joinToken, Kind: kind, Name: name}))
	if err != nil {
		return fmt.Errorf("enrol: %w", err)
	}
	s := &dxpuv1.ObservedState{
		NodeId: res.Msg.NodeId, InstanceId: "1", Sequence: 1, Addresses: []*dxpuv1.PathAddress{{Address: "127.0.0.1:1"}},
	}
	if kind == dxpuv1.NodeKind_NODE_KIND_BOX {
		s.BoxKind = dxpuv1.BoxKind_BOX_KIND_PCIE_SWITCH
	}
	for i := range uint32(slotsPerNode) {
		slot := &dxpuv1.ObservedSlot{Slot: i, Health: dxpuv1.Health_HEALTH_OK}
		if kind == dxpuv1.NodeKind_NODE_KIND_BOX {
			slot.Device = &dxpuv1.Device{Model: "DX100", MemoryBytes: 80 << 30}
		}
		s.Slots = append(s.Slots, slot)
	}
	req := connect.NewRequest(&dxpuv1.ReportRequest{State: s})
	req.Header().Set("Authorization", "Bearer "+res.Msg.Credential)
	if _, err := api.Report(ctx, req); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// time makes the calls of one round and records their times.
func (r *run) time(ctx context.Context, rate *Rate, call func(ctx context.Context, n int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	times := make([]time.Duration, r.spec.Leases)
	begun := time.Now()
	for range r.spec.AtOnce {
		g.Go(func() error {
			for {
				n := int(next.Add(1)) - 1
				if n >= len(times) {
					return nil
				}
				at := time.Now()
				if err := call(ctx, n); err != nil {
					return err
				}
				times[n] = time.Since(at)
			}
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	rate.Each = append(rate.Each, float64(len(times))/time.Since(begun).Seconds())
	rate.times = append(rate.times, times...)
	return nil
}
