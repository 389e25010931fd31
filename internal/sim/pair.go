package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/agent/agenttest"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/internal/embedded"
	"github.com/dxpu-project/dxpu/internal/embedded/rootcomplex"
	"github.com/dxpu-project/dxpu/internal/hostproxy"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/pcie"
)

// PairSpec describes a host and a box with one device. Its zero value has a GPU
// with every default, one perfect path and 64 MiB of host memory.
type PairSpec struct {
	GPU gpu.Spec
	// Device is used instead of the GPU if it is not nil.
	Device device.Device
	Slice  *boxproxy.Slice // of Device, if that is a slice of a GPU
	Paths  []Duplex        // none: one
	// RootLatency is the time that a TLP of the GPU takes from the host's proxy
	// to host memory. The round trip of a memory read of the GPU is RootLatency
	// and the delays of both directions of a path, where no bandwidth is set.
	RootLatency time.Duration
	// Link sets cipher, windows and timers of both ends; fields of 0 have the
	// defaults of package link.
	Link link.Config
	MTU  int // of every path, bytes of UDP payload; 0: DefaultMTU
	// Memory is the size of host memory in bytes; 0: 64 MiB.
	Memory int
	// MaxPayload is Max_Payload_Size of host and device; 0: 256.
	MaxPayload pcie.PayloadSize
	Seed       uint64 // of the faults
}

// Duplex is one of the parallel networks between the proxies of a pair: a plan for
// the datagrams of the host and one for those of the box.
type Duplex struct{ Down, Up fault.Plan }

// Delayed is a network that only takes time.
func Delayed(d time.Duration) Duplex {
	return Duplex{Down: fault.Plan{Delay: d}, Up: fault.Plan{Delay: d}}
}

// Pair is a world with a host, whose only slot holds the device of a box.
type Pair struct {
	*World
	HostNode, BoxNode *Node

	host  *hostproxy.Proxy
	box   *boxproxy.Box
	front *hostproxy.Embedded
}

// attachTimeout bounds how long a pair waits in virtual time for its device.
const attachTimeout = 30 * time.Second

// NewPair makes a pair. It returns when the device is attached.
func NewPair(spec PairSpec) (*Pair, error) {
	p := &Pair{World: NewWorld(spec.Seed)}
	err := p.setUp(spec)
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("sim: %w", err)
	}
	return p, nil
}

func (p *Pair) setUp(spec PairSpec) error {
	if len(spec.Paths) == 0 {
		spec.Paths = []Duplex{{}}
	}
	spec.MaxPayload = cmp.Or(spec.MaxPayload, 256)
	d := spec.Device
	if d == nil {
		spec.GPU.MaxPayload = cmp.Or(spec.GPU.MaxPayload, spec.MaxPayload)
		g, err := gpu.New(spec.GPU)
		if err != nil {
			return err
		}
		d = &delayed{GPU: g, latency: spec.RootLatency}
	}
	var paths [2][]Path
	for i, duplex := range spec.Paths {
		for side, plan := range []fault.Plan{duplex.Down, duplex.Up} {
			paths[side] = append(paths[side], Path{Addr: address(side+1, i), MTU: spec.MTU, Plan: plan})
		}
	}
	hostNode, err := p.NewNode(paths[0], nil)
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	boxNode, err := p.NewNode(paths[1], nil)
	if err != nil {
		return fmt.Errorf("box: %w", err)
	}
	p.HostNode, p.BoxNode = hostNode, boxNode
	hostNode.Tune, boxNode.Tune = spec.tune, spec.tune
	log := slog.New(slog.DiscardHandler)
	if p.box, err = boxproxy.New(boxproxy.Config{Slots: []boxproxy.Slot{{Device: d, Slice: spec.Slice}}, Fabric: boxNode, Logger: log}); err != nil {
		return err
	}
	enum := rootcomplex.DefaultEnumSpec()
	enum.MaxPayload, enum.TenBitTags = spec.MaxPayload, true
	p.front = hostproxy.NewEmbedded(hostproxy.EmbeddedSpec{
		Memory: spec.Memory, Enum: &enum, Host: rootcomplex.Spec{MaxPayload: spec.MaxPayload},
	})
	if p.host, err = hostproxy.New(hostproxy.Config{Slots: 1, Front: p.front, Fabric: hostNode, Domain: "host/0", Logger: log}); err != nil {
		return err
	}
	start(boxNode, p.box.Controllers())
	start(hostNode, p.host.Controllers())
	b := agenttest.Binding{
		ID: "pair", Epoch: 1, Domain: "host/0", Cipher: dxpuv1.Cipher_CIPHER_NONE, Host: hostNode.end(1, 0), Box: boxNode.end(2, 0),
	}
	if spec.Link.Cipher == link.CipherAES256GCM {
		b.Cipher = dxpuv1.Cipher_CIPHER_AES_256_GCM
	}
	p.box.Apply(agenttest.Desired(b.Box.Node, 1, b))
	p.host.Apply(agenttest.Desired(b.Host.Node, 1, b))
	return p.awaitAttached()
}

func (p *Pair) awaitAttached() error {
	var have *dxpuv1.ObservedBinding
	p.RunUntil(p.Now()+attachTimeout, func() bool {
		have = p.host.Observe().Slots[0].Binding
		s := have.GetState()
		return s == dxpuv1.BindingState_BINDING_STATE_ATTACHED || s == dxpuv1.BindingState_BINDING_STATE_FAILED
	})
	if have.GetState() != dxpuv1.BindingState_BINDING_STATE_ATTACHED {
		return fmt.Errorf("the device was not attached: %s", have.GetDetail())
	}
	return nil
}

// tune replaces the windows and timers of a proxy by those of the spec.
func (s *PairSpec) tune(cfg *link.Config) {
	own := *cfg
	*cfg = s.Link
	cfg.Binding, cfg.Epoch, cfg.Local, cfg.Remote = own.Binding, own.Epoch, own.Local, own.Remote
	cfg.Initiator, cfg.Session, cfg.Ephemeral, cfg.Paths = own.Initiator, own.Session, own.Ephemeral, own.Paths
	cfg.Secret, cfg.Cipher = own.Secret, own.Cipher
}

// start runs the controllers of a proxy as tasks.
func start(n *Node, controllers []func(context.Context)) {
	for _, c := range controllers {
		n.Go(func() { c(context.Background()) })
	}
}

// address is where a node has a path: a network of its own for each path.
func address(node, path int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(path), byte(node >> 8), byte(node)}), 4791)
}

// Open returns the bus of the device. Time passes in the methods of the bus.
func (p *Pair) Open() (*embedded.Bus, error) { return p.front.Open(0) }

// OpenGPU opens the device with the GPU's driver. Time passes, here and in the
// methods of the device.
func (p *Pair) OpenGPU(ctx context.Context, opts driver.Options) (*driver.Device, error) {
	bus, err := p.Open()
	if err != nil {
		return nil, err
	}
	return driver.Open(ctx, bus, opts)
}

// Counters returns those of the host's root complex.
func (p *Pair) Counters() rootcomplex.Counters { return p.front.Host().Counters() }

// LinkReports returns the state of the link at the host and at the box.
func (p *Pair) LinkReports() (host, box *agent.LinkReport, err error) {
	h, b := p.host.Report().Slots[0].Binding, p.box.Report().Slots[0].Binding
	if h == nil || b == nil {
		return nil, nil, errors.New("sim: the device is not attached")
	}
	return h.Link, b.Link, nil
}

// end returns the end of a binding at a slot of a node.
func (n *Node) end(number, slot uint32) agenttest.End {
	return agenttest.End{Node: number, Slot: slot, Addresses: agent.Addresses(n)}
}
