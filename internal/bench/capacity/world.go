package capacity

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/bench/process"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
	"github.com/dxpu-project/dxpu/internal/hostproxy"
	"github.com/dxpu-project/dxpu/internal/pool/manager"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
)

// Sizes that keep hundreds of hosts and GPUs in one machine's memory.
const (
	hostMemory = 4 << 20 // of an embedded host: rings, fences and the data of the check
	gpuMemory  = 4 << 20
)

// world is a pool in one process, on the loopback interface: a manager behind HTTP,
// and boxes and hosts, each with its own socket.
type world struct {
	spec    Spec
	store   *timedStore
	url     string
	api     dxpuv1connect.PoolServiceClient
	clients *http.Client // the nodes'
	token   string
	hosts   map[string]*hostproxy.Embedded
	process.Background
}

// newWorld starts a pool and waits until the manager knows all GPUs.
func newWorld(ctx context.Context, spec Spec) (*world, error) {
	w := &world{
		spec: spec, token: rand.Text(), hosts: map[string]*hostproxy.Embedded{},
		clients: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4 * (spec.Boxes + spec.Hosts)}},
	}
	if err := w.start(ctx); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *world) start(ctx context.Context) error {
	if err := w.startManager(ctx); err != nil {
		return err
	}
	for i := range w.spec.Boxes {
		if err := w.startBox(i); err != nil {
			return err
		}
	}
	for i := range w.spec.Hosts {
		if err := w.startHost(i); err != nil {
			return err
		}
	}
	return w.await(ctx)
}

func (w *world) startManager(ctx context.Context) error {
	w.store = &timedStore{Store: w.spec.Store}
	m, err := manager.New(ctx, manager.Config{
		JoinToken: w.token, Store: w.store, Open: manager.OpenLoopback, MTU: loopbackMTU,
		Heartbeat: w.spec.Heartbeat, LostAfter: max(time.Second, 8*w.spec.Heartbeat), // attaches may keep the machine busy
	})
	if err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	w.url = "http://" + l.Addr().String()
	w.api = dxpuv1connect.NewPoolServiceClient(&http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: w.spec.AtOnce}}, w.url)
	w.Go(func(ctx context.Context) error { return serve(ctx, m, l) })
	return nil
}

// serve runs a manager until ctx ends and the manager has sent its last answer.
func serve(ctx context.Context, m *manager.Manager, l net.Listener) error {
	srv := &http.Server{Handler: m.Handler(), ReadHeaderTimeout: 5 * time.Second}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(l) }) // ErrServerClosed, as the listener is ours
	err := m.Run(ctx)                  // closes the watches
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if srv.Shutdown(stop) != nil {
		_ = srv.Close()
	}
	wg.Wait()
	return err
}

// loopbackMTU is the largest UDP payload; the loopback interface does not fragment it.
const loopbackMTU = 65507

func (w *world) startBox(i int) error {
	f, err := w.openFabric()
	if err != nil {
		return err
	}
	var slots []boxproxy.Slot
	for s := range w.spec.GPUsPerBox {
		// copyBothWays makes the data of each GPU from its serial number.
		g, err := gpu.New(gpu.Spec{VRAM: gpuMemory, Serial: uint64(i*boxproxy.MaxSlots + s + 1)})
		if err != nil {
			return err
		}
		slots = append(slots, boxproxy.Slot{Device: g})
	}
	b, err := boxproxy.New(boxproxy.Config{
		Slots: slots, Fabric: f, Kind: dxpuv1.BoxKind_BOX_KIND_PCIE_SWITCH, Rack: rackOf(i), Logger: discard(),
	})
	if err != nil {
		return err
	}
	w.Go(b.Run)
	return w.join(fmt.Sprintf("box-%03d", i), dxpuv1.NodeKind_NODE_KIND_BOX, b, b.OnChange)
}

func (w *world) startHost(i int) error {
	f, err := w.openFabric()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("host-%03d", i)
	front := hostproxy.NewEmbedded(hostproxy.EmbeddedSpec{Memory: hostMemory})
	h, err := hostproxy.New(hostproxy.Config{
		Slots: w.spec.slotsPerHost(), Front: front, Fabric: f, Domain: "embedded", Rack: rackOf(i), Logger: discard(),
	})
	if err != nil {
		return err
	}
	w.hosts[name] = front
	w.Go(h.Run)
	return w.join(name, dxpuv1.NodeKind_NODE_KIND_HOST, h, h.OnChange)
}

func rackOf(i int) string { return fmt.Sprintf("rack-%d", i/8) }

func (w *world) openFabric() (*netio.Fabric, error) {
	reader.ReserveProcessors()
	f, err := netio.Open(netio.Config{Paths: []netio.PathConfig{{Listen: "127.0.0.1:0"}}, Logger: discard()})
	if err != nil {
		return nil, err
	}
	w.Go(f.Run)
	return f, nil
}

// join connects a proxy to the manager.
func (w *world) join(name string, kind dxpuv1.NodeKind, h agent.Handler, onChange func(func())) error {
	c, err := agent.New(agent.Config{
		Manager: w.url, JoinToken: w.token, Kind: kind, Name: name, HTTPClient: w.clients, Log: discard(),
	}, h)
	if err != nil {
		return err
	}
	onChange(c.Changed)
	w.Go(c.Run)
	return nil
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// await waits until every node reports.
func (w *world) await(ctx context.Context) error {
	want := uint32(w.spec.gpus())
	return poll(ctx, func() (bool, error) {
		res, err := w.api.GetPool(ctx, connect.NewRequest(&dxpuv1.GetPoolRequest{}))
		if err != nil {
			return false, err
		}
		p := res.Msg.Pool
		return p.Gpus == want && p.GpusFree == want && int(p.HostsConnected) == w.spec.Hosts, nil
	})
}

// poll calls done every 20 ms until it returns true or an error, or ctx ends.
func poll(ctx context.Context, done func() (bool, error)) error {
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-again.C:
		}
	}
}

// close ends the nodes before their proxies, those before their sockets, and the
// manager last.
func (w *world) close() error {
	err := w.Close()
	w.clients.CloseIdleConnections()
	return err
}
