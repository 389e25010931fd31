package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
	"github.com/dxpu-project/dxpu/internal/hostproxy"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
)

// Node numbers, as a manager would give them. Switch i of the host is node
// firstHost+i.
const (
	boxNumber = 1
	firstHost = 2
)

// memberSpec describes a proxy: a box with GPUs, or a host. A host has as many
// virtual switches as its slots need.
type memberSpec struct {
	Kind  string   // kindBox, kindHost or kindEcho
	Slots int      // devices, or places for them
	GPU   gpu.Spec // of a box
	// SocketDirs hold the vfio-user sockets of a host, one for each switch.
	SocketDirs []string
	Fault      string
	Polling    reader.Polling
	Profile    string
}

const (
	kindBox  = "box"
	kindHost = "host"
	kindEcho = "echo" // the far end of ping-pongs
)

// part is a box, or one virtual switch of a host.
type part interface {
	agent.Handler
	OnChange(f func())
	Run(ctx context.Context) error
}

// member is a running proxy, without a manager.
type member struct {
	fabric *netio.Fabric
	parts  []part
	news   chan struct{}
	stops  []func() error
}

// newMember starts a proxy. fronts are those of a host's switches.
func newMember(spec memberSpec, fronts []hostproxy.Front) (*member, error) {
	plan, err := fault.Parse(spec.Fault)
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.DiscardHandler)
	m := &member{news: make(chan struct{}, 1)}
	m.fabric, err = netio.Open(netio.Config{
		Paths: []netio.PathConfig{{Listen: "127.0.0.1:0", Fault: plan, Seed: uint64(len(spec.Kind))}}, Polling: spec.Polling, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	m.background(m.fabric.Run)
	if spec.Kind == kindBox {
		err = m.addBox(spec, log)
	} else {
		err = m.addSwitches(spec.Slots, fronts, log)
	}
	if err != nil {
		return nil, errors.Join(err, m.close())
	}
	for _, p := range m.parts {
		p.OnChange(func() {
			select {
			case m.news <- struct{}{}:
			default:
			}
		})
		m.background(p.Run)
	}
	return m, nil
}

func (m *member) addBox(spec memberSpec, log *slog.Logger) error {
	var slots []boxproxy.Slot
	for i := range spec.Slots {
		spec.GPU.Serial = uint64(i + 1)
		g, err := gpu.New(spec.GPU)
		if err != nil {
			return err
		}
		slots = append(slots, boxproxy.Slot{Device: g})
	}
	b, err := boxproxy.New(boxproxy.Config{Slots: slots, Fabric: m.fabric, Logger: log})
	if err != nil {
		return err
	}
	m.parts = append(m.parts, b)
	return nil
}

func (m *member) addSwitches(slots int, fronts []hostproxy.Front, log *slog.Logger) error {
	for i, front := range fronts {
		h, err := hostproxy.New(hostproxy.Config{
			Slots: min(slots-i*hostproxy.MaxSlots, hostproxy.MaxSlots), Front: front, Fabric: m.fabric,
			Domain: fmt.Sprintf("switch%d", i), Logger: log,
		})
		if err != nil {
			return err
		}
		m.parts = append(m.parts, h)
	}
	return nil
}

// background runs f until close.
func (m *member) background(f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var failed error
	wg.Go(func() { failed = f(ctx) })
	m.stops = append(m.stops, func() error {
		cancel()
		wg.Wait()
		return failed
	})
}

// close ends the parts before the fabric: they have a last word for their peers.
func (m *member) close() error {
	var errs []error
	for i := len(m.stops) - 1; i >= 0; i-- {
		errs = append(errs, m.stops[i]())
	}
	return errors.Join(errs...)
}

// apply gives each part what it should have.
func (m *member) apply(desired []*dxpuv1.DesiredState) {
	for i, d := range desired {
		m.parts[i].Apply(d)
	}
}

// attachTimeout bounds how long a binding may take to come up, on a machine
// that is busy with other things.
const attachTimeout = 30 * time.Second

// await waits until n slots of a host have their devices.
func (m *member) await(n int) error {
	deadline := time.NewTimer(attachTimeout)
	defer deadline.Stop()
	for {
		attached := 0
		for _, p := range m.parts {
			for _, s := range p.Observe().Slots {
				switch s.GetBinding().GetState() {
				case dxpuv1.BindingState_BINDING_STATE_ATTACHED:
					attached++
				case dxpuv1.BindingState_BINDING_STATE_FAILED, dxpuv1.BindingState_BINDING_STATE_LOST:
					return fmt.Errorf("slot %d: %s", s.Slot, s.Binding.Detail)
				}
			}
		}
		if attached >= n {
			return nil
		}
		select {
		case <-m.news:
		case <-deadline.C:
			return fmt.Errorf("%d of %d devices attached after %v", attached, n, attachTimeout)
		}
	}
}

// tlps counts the TLPs that a box's slot has received from its host.
func (m *member) tlps(slot int) uint64 {
	return m.parts[0].Observe().Slots[slot].GetBinding().GetCounters().GetTlpsReceived()
}
