// Package boxproxy is DxPU_PROXY on the side of a GPU box: it holds the devices of
// the box's slots and carries their TLPs to the hosts to which the manager bound
// them.
package boxproxy

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/share/dispatch"
	"github.com/dxpu-project/dxpu/tlp"
)

// MaxSlots is the largest number of slots: eight bits of a binding's ID hold the
// slot.
const MaxSlots = 256

// Slot describes a slot of the box.
type Slot struct {
	Device            device.Device // nil: the slot is empty
	NVLink, PCISwitch string        // names of the NVLink domain and of the PCIe switch; empty: none
	Slice             *Slice        // nil: the device has its processor to itself
}

// Config of a box.
type Config struct {
	Slots  []Slot
	Fabric engine.Driver
	Kind   dxpuv1.BoxKind
	Rack   string
	Labels map[string]string
	Logger *slog.Logger
}

// Box is the running proxy of a box. It implements agent.Handler.
type Box struct {
	agent.Desired

	cfg    Config
	log    *slog.Logger
	fabric engine.Driver
	slots  []*slot

	tableMu sync.RWMutex
	table   *mapping.BoxTable

	mu      sync.Mutex // guards domains
	domains map[string]*domain
}

// New makes a box. It binds no slot before Run.
func New(cfg Config) (*Box, error) {
	if len(cfg.Slots) == 0 || len(cfg.Slots) > MaxSlots {
		return nil, fmt.Errorf("boxproxy: a box has 1 to %d slots, not %d", MaxSlots, len(cfg.Slots))
	}
	b := &Box{cfg: cfg, log: cfg.Logger, fabric: cfg.Fabric, table: mapping.NewBoxTable(len(cfg.Slots)), domains: map[string]*domain{}}
	dispatchers := map[*dispatch.Dispatcher]*dispatcher{}
	for i, sc := range cfg.Slots {
		s := newSlot(b, i, sc)
		if sc.Slice != nil {
			m := sc.Slice.Dispatcher
			if dispatchers[m] == nil {
				dispatchers[m] = newDispatcher(cfg.Fabric, m)
			}
			s.dispatcher = dispatchers[m]
		}
		b.OnWake(s.wake)
		b.slots = append(b.slots, s)
	}
	return b, nil
}

// Run brings each slot to the state that the manager wants. When ctx ends, it
// takes every binding down and then ends the devices.
func (b *Box) Run(ctx context.Context) error {
	deviceCtx, endDevices := context.WithCancel(context.WithoutCancel(ctx))
	var controllers, devices sync.WaitGroup
	for _, run := range b.Controllers() {
		controllers.Go(func() { run(ctx) })
	}
	for _, s := range b.slots {
		if s.runner != nil {
			devices.Go(func() { s.runner.Run(deviceCtx) })
		}
	}
	controllers.Wait()
	endDevices()
	devices.Wait()
	return nil
}

// Controllers returns the functions that Run calls concurrently, one for each
// slot. A driver without goroutines calls them in Run's place, and has no devices
// that need goroutines.
func (b *Box) Controllers() []func(ctx context.Context) {
	out := make([]func(context.Context), len(b.slots))
	for i, s := range b.slots {
		out[i] = s.run
	}
	return out
}

// bindRow puts the binding of a slot into the mapping table.
func (b *Box) bindRow(slot int, bars [pcie.MaxBARs]pcie.BAR, host mapping.Owner) error {
	b.tableMu.Lock()
	defer b.tableMu.Unlock()
	if err := b.table.Insert(slot, bars); err != nil {
		return err
	}
	return b.table.Bind(slot, host)
}

func (b *Box) unbindRow(slot int) {
	b.tableMu.Lock()
	defer b.tableMu.Unlock()
	b.table.Unbind(slot)
}

// snoop lets the mapping table learn from a configuration write.
func (b *Box) snoop(slot int, p *tlp.Packet) {
	b.tableMu.Lock()
	defer b.tableMu.Unlock()
	b.table.Snoop(slot, p)
}

// peer returns the neighbour that a TLP of a slot addresses, or nil. A neighbour
// in the same domain shares the group of the caller.
func (b *Box) peer(from int, p *tlp.Packet) *slot {
	b.tableMu.RLock()
	defer b.tableMu.RUnlock()
	i, ok := b.table.Peer(from, p)
	if !ok || b.slots[i].binding == nil {
		return nil
	}
	return b.slots[i]
}

// join returns the domain of a name and counts one more slot in it.
func (b *Box) join(name string) *domain {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.domains[name]
	if d == nil {
		d = &domain{name: name, group: b.fabric.NewGroup()}
		b.domains[name] = d
	}
	d.slots.Add(1)
	return d
}

// leave counts one slot less in a domain and forgets the domain at the last.
func (b *Box) leave(d *domain) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d.slots.Add(-1) == 0 {
		delete(b.domains, d.name)
	}
}
