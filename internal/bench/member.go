package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/vfioserver"
	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/bench/process"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
	"github.com/dxpu-project/dxpu/internal/hostproxy"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
	"github.com/dxpu-project/dxpu/share"
	"github.com/dxpu-project/dxpu/share/dispatch"
)

// Node numbers in the manager's place. Switch i of the host is node firstHost+i.
const (
	boxNumber = 1
	firstHost = 2
)

// memberSpec describes a proxy: a box with GPUs, or a host with enough virtual
// switches for its slots.
type memberSpec struct {
	Kind  string   // kindBox, kindHost, kindEcho, kindBusy or kindServers
	Slots int      // of the box or host
	GPU   gpu.Spec // of a box
	// Slices divide the one GPU of a box.
	Slices []sliceSpec
	Policy string // of the slices
	// PerSwitch is the number of slots of each virtual switch of a host.
	PerSwitch int
	// Server is the socket of a device server in the place of a box's first GPU.
	Server string
	// SocketDirs are the directories of a host's vfio-user sockets, one for each switch.
	SocketDirs []string
	Fault      string
	Polling    reader.Polling
	Profile    string
}

const (
	kindBox  = "box"
	kindHost = "host"
	kindEcho = "echo" // the far end of ping-pongs
	kindBusy = "busy" // a busy loop
	// kindServers serves devices without a proxy.
	kindServers = "servers"
)

// patience is the Completion Timeout of hosts and devices. On a machine with more work
// than processors an answer may take seconds. A benchmark waits for it, because only
// the end of a link proves that a device is lost.
const patience = 20 * time.Second

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
	process.Background
}

// newMember starts a proxy. fronts are the front ends of a host's switches.
func newMember(spec memberSpec, fronts []hostproxy.Front) (*member, error) {
	plan, err := fault.Parse(spec.Fault)
	if err != nil {
		return nil, err
	}
	reader.ReserveProcessors()
	log := slog.New(slog.DiscardHandler)
	m := &member{news: make(chan struct{}, 1)}
	m.fabric, err = netio.Open(netio.Config{
		Paths: []netio.PathConfig{{Listen: "127.0.0.1:0", Fault: plan, Seed: uint64(len(spec.Kind))}}, Polling: spec.Polling, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	m.Go(m.fabric.Run)
	if spec.Kind == kindBox {
		err = m.addBox(spec, log)
	} else {
		err = m.addSwitches(spec, fronts, log)
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	for _, p := range m.parts {
		p.OnChange(func() {
			select {
			case m.news <- struct{}{}:
			default:
			}
		})
		m.Go(p.Run) // Close ends it before the fabric: its last messages reach its peers
	}
	return m, nil
}

func (m *member) addBox(spec memberSpec, log *slog.Logger) error {
	slots, err := spec.divide()
	if err != nil {
		return err
	}
	for i := len(slots); i < spec.Slots; i++ {
		spec.GPU.Serial, spec.GPU.CompletionTimeout = uint64(i+1), patience
		g, err := gpu.New(spec.GPU)
		if err != nil {
			return err
		}
		slots = append(slots, boxproxy.Slot{Device: g})
	}
	if spec.Server != "" {
		slots[0].Device = vfioserver.New(context.Background(), vfioserver.Spec{Socket: spec.Server}, log)
	}
	b, err := boxproxy.New(boxproxy.Config{Slots: slots, Fabric: m.fabric, Logger: log})
	if err != nil {
		return err
	}
	m.parts = append(m.parts, b)
	return nil
}

// divide returns the slots of the slices.
func (s *memberSpec) divide() ([]boxproxy.Slot, error) {
	if len(s.Slices) == 0 {
		return nil, nil
	}
	var memory []int64
	var clients []share.ClientSpec
	for _, c := range s.Slices {
		memory = append(memory, sliceMemory)
		clients = append(clients, c.client(sliceMemory))
	}
	spec := s.GPU
	spec.CompletionTimeout = patience
	physical, err := gpu.NewPhysical(spec, memory)
	if err != nil {
		return nil, err
	}
	d, err := dispatch.ByName(physical.Device(), cmp.Or(s.Policy, "mps"))
	if err != nil {
		return nil, err
	}
	return boxproxy.SliceSlots(physical.Slices(), d, clients), nil
}

func (m *member) addSwitches(spec memberSpec, fronts []hostproxy.Front, log *slog.Logger) error {
	per := cmp.Or(spec.PerSwitch, hostproxy.MaxSlots)
	for i, front := range fronts {
		h, err := hostproxy.New(hostproxy.Config{
			Slots: min(spec.Slots-i*per, per), Front: front, Fabric: m.fabric,
			Domain: fmt.Sprintf("switch%d", i), CompletionTimeout: patience, Logger: log,
		})
		if err != nil {
			return err
		}
		m.parts = append(m.parts, h)
	}
	return nil
}

// apply gives each part its desired state.
func (m *member) apply(desired []*dxpuv1.DesiredState) {
	for i, d := range desired {
		m.parts[i].Apply(d)
	}
}

// attachTimeout is the limit of an attach, on a busy machine.
const attachTimeout = 30 * time.Second

// await waits until n slots of a host have a device.
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

// tlps returns the number of TLPs that a slot of a box has received from its host.
func (m *member) tlps(slot int) uint64 {
	return m.parts[0].Observe().Slots[slot].GetBinding().GetCounters().GetTlpsReceived()
}
