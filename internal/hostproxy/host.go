// Package hostproxy is DxPU_PROXY on the side of a host: a PCIe virtual switch
// in whose slots the devices of GPU boxes appear, for a virtual machine over
// vfio-user or for the embedded host.
package hostproxy

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/internal/embedded"
	"github.com/dxpu-project/dxpu/tlp"
)

// MaxSlots is the largest virtual switch: 32 devices on its internal bus.
const MaxSlots = 32

// Front shows devices to the host of a virtual switch: VM or Embedded. Callers of
// its methods have not entered the group.
type Front interface {
	// start prepares the front for a host proxy with empty slots.
	start(h *Proxy) error
	// plug shows the device in a slot to the host. It returns the port that
	// carries the slot's traffic from then on.
	plug(ctx context.Context, s *slot) (plugged, error)
	// stop ends what the front still does for devices that were taken away.
	stop()
}

// plugged is a device that the host can see.
type plugged interface {
	port
	// unplug asks the host to release the device and waits until it has, or
	// until ctx ends: then it returns an error and the last signs of use.
	unplug(ctx context.Context) (use string, err error)
	// held reports whether a driver of the host has the device.
	held(e engine.Entry) bool
	// close takes the device away, even if the host has not released it. Until
	// then the front answers the host in the device's place.
	close()
}

// Config of a host proxy.
type Config struct {
	Slots  int
	Front  Front
	Fabric engine.Driver
	Domain string // names the virtual switch in the manager's inventory
	Rack   string
	Labels map[string]string
	// CompletionTimeout ends a request that a device does not answer. Default
	// 1 s: below every deadline of a VMM, above any stall of a path that fails over.
	// Below a QEMU that the front plugs into it is 800 ms: QEMU holds a lock meanwhile,
	// and its monitor is to answer within a second. A link whose own answers are slow
	// extends it, to at most 4 s; below QEMU only while the box is heard.
	CompletionTimeout time.Duration
	// UnplugTimeout bounds the time in which a host releases a device when the
	// manager does not set it. Default 15 s.
	UnplugTimeout time.Duration
	Logger        *slog.Logger
}

// Proxy is the running proxy of a host. It implements agent.Handler.
type Proxy struct {
	agent.Desired

	cfg    Config
	log    *slog.Logger
	fabric engine.Driver
	waiter embedded.Waiter    // nil: callers of the embedded host wait by a Scheduler
	group  engine.GroupDriver // all slots: one PCIe hierarchy
	table  *mapping.HostTable
	router router
	slots  []*slot
}

// router routes what devices send: the mapping table, or the switch of an
// embedded host.
type router interface {
	FromSlot(slot int, p *tlp.Packet) mapping.Route
	AllToHost(slot int, addr, n uint64) bool
}

// New makes a host proxy with empty slots.
func New(cfg Config) (*Proxy, error) {
	if cfg.Slots < 1 || cfg.Slots > MaxSlots {
		return nil, fmt.Errorf("hostproxy: a virtual switch has 1 to %d slots, not %d", MaxSlots, cfg.Slots)
	}
	cfg.CompletionTimeout = cmp.Or(cfg.CompletionTimeout, defaultTimeout(cfg.Front))
	cfg.UnplugTimeout = cmp.Or(cfg.UnplugTimeout, 15*time.Second)
	h := &Proxy{cfg: cfg, log: cfg.Logger, fabric: cfg.Fabric, group: cfg.Fabric.NewGroup(), table: mapping.NewHostTable(cfg.Slots)}
	h.router = h.table
	h.waiter, _ = cfg.Fabric.(embedded.Waiter)
	for i := range cfg.Slots {
		s := newSlot(h, i)
		h.OnWake(s.wake)
		h.slots = append(h.slots, s)
	}
	if err := cfg.Front.start(h); err != nil {
		return nil, err
	}
	return h, nil
}

// Run keeps each slot as the manager wants it, until ctx ends; then every
// device is taken away.
func (h *Proxy) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, run := range h.Controllers() {
		wg.Go(func() { run(ctx) })
	}
	wg.Wait()
	h.cfg.Front.stop()
	return nil
}

// Controllers returns the functions that Run calls concurrently, one for each
// slot. A driver without goroutines calls them in Run's place.
func (h *Proxy) Controllers() []func(ctx context.Context) {
	out := make([]func(context.Context), len(h.slots))
	for i, s := range h.slots {
		out[i] = s.run
	}
	return out
}
