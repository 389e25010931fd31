// Package simulated runs many simulated hosts and boxes in this process, for benchmarks
// of the manager and for pools to try. A node has no data plane: like a real one it uses
// package agent, over HTTP/2, and it reports every attach and detach as done at once.
// Several nodes share a connection, because the number of file descriptors of a process
// is limited.
package simulated

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/agent"
)

// Spec describes the nodes. All numbers are positive.
type Spec struct {
	Manager   string // URL
	JoinToken string
	Version   string // of the nodes, as they report it

	Hosts        int
	SlotsPerHost int
	Boxes        int
	GPUsPerBox   int
	PartsPerGPU  int // slots for parts of each GPU; 0: GPUs cannot be divided

	AtOnce             int // nodes that enrol concurrently
	NodesPerConnection int

	Progress func(format string, args ...any)
}

// models are the GPU models of the boxes, in turn.
var models = []string{"A100", "H100", "T4", "V100"}

// Model returns the model of the GPUs in box i of a number of boxes. If the number of
// boxes is not a multiple of the number of models there is only one model, so that
// the pool has as many GPUs of each model.
func Model(boxes, i int) string {
	if boxes%len(models) != 0 {
		i = 0
	}
	return models[i%len(models)]
}

// Nodes are simulated hosts and boxes.
type Nodes struct {
	spec    Spec
	reports atomic.Uint64
	clients []*http.Client // one for each connection

	stops   []context.CancelFunc
	running sync.WaitGroup
	mu      sync.Mutex
	failed  error
}

// New returns nodes that Start starts.
func New(spec Spec) *Nodes { return &Nodes{spec: spec} }

// Reports returns the number of reports that the nodes have made.
func (n *Nodes) Reports() uint64 { return n.reports.Load() }

// Start enrols all nodes, Spec.AtOnce at a time, and returns when each has reported
// once. They run until Stop, which also follows a Start that failed.
func (n *Nodes) Start(ctx context.Context) error {
	turns := make(chan struct{}, n.spec.AtOnce)
	var enrolled sync.WaitGroup
	total := n.spec.Hosts + n.spec.Boxes
	for i := range total {
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		enrolled.Add(1)
		s := n.simulated(i, func() {
			<-turns
			enrolled.Done()
		})
		c, err := agent.New(agent.Config{
			Manager: n.spec.Manager, JoinToken: n.spec.JoinToken, Kind: s.kind, Name: s.name, Version: n.spec.Version, HTTPClient: n.client(i),
		}, s)
		if err != nil {
			return err
		}
		// Each has its own context: the lock of a common one would be contended.
		life, cancel := context.WithCancel(context.WithoutCancel(ctx))
		n.stops = append(n.stops, cancel)
		n.running.Go(func() {
			if err := c.Run(life); err != nil {
				n.fail(fmt.Errorf("node %s: %w", s.name, err))
			}
		})
		n.spec.Progress("%d of %d nodes", i+1, total)
	}
	done := make(chan struct{})
	go func() {
		enrolled.Wait()
		close(done)
	}()
	select {
	case <-done:
		return n.error()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// client returns the HTTP client of a node, which it shares with other nodes.
func (n *Nodes) client(i int) *http.Client {
	if i%n.spec.NodesPerConnection == 0 {
		// Without the limit, nodes that call at the same time would dial a connection each.
		t := &http.Transport{Protocols: &http.Protocols{}, MaxConnsPerHost: 1}
		t.Protocols.SetUnencryptedHTTP2(true)
		n.clients = append(n.clients, &http.Client{Transport: t})
	}
	return n.clients[len(n.clients)-1]
}

func (n *Nodes) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failed = err
}

func (n *Nodes) error() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.failed
}

// Stop ends the nodes and waits for them.
func (n *Nodes) Stop() {
	for _, stop := range n.stops {
		stop()
	}
	n.running.Wait()
	for _, c := range n.clients {
		c.CloseIdleConnections()
	}
}

// simulated makes node i; the boxes come first. The node calls enrolled after it has
// enrolled.
func (n *Nodes) simulated(i int, enrolled func()) *simulated {
	s := &simulated{reports: &n.reports, enrolled: sync.OnceFunc(enrolled)}
	s.state.Addresses = []*dxpuv1.PathAddress{{Address: fmt.Sprintf("10.%d.%d.%d:7471", 1+i>>16, i>>8&255, i&255), Mtu: 1472}}
	if i < n.spec.Boxes {
		s.box(i, n.spec.GPUsPerBox, n.spec.PartsPerGPU, Model(n.spec.Boxes, i))
	} else {
		s.host(i-n.spec.Boxes, n.spec.SlotsPerHost)
	}
	return s
}

// simulated is a proxy that reaches its desired state at once. It implements
// agent.Handler.
type simulated struct {
	kind     dxpuv1.NodeKind
	name     string
	reaches  dxpuv1.BindingState // reported state of each desired binding
	reports  *atomic.Uint64
	enrolled func()

	state dxpuv1.ObservedState // the constant part; not shared with other nodes
	mu    sync.Mutex
	want  *dxpuv1.DesiredState
}

func (s *simulated) box(i, gpus, parts int, model string) {
	s.kind, s.name, s.reaches = dxpuv1.NodeKind_NODE_KIND_BOX, fmt.Sprintf("box-%05d", i), dxpuv1.BindingState_BINDING_STATE_READY
	s.state.Rack, s.state.BoxKind, s.state.ProxyGpus = fmt.Sprintf("rack-%d", i/8), dxpuv1.BoxKind_BOX_KIND_PCIE_SWITCH, 6
	domain := ""
	if i%3 == 0 {
		s.state.BoxKind, domain = dxpuv1.BoxKind_BOX_KIND_NVLINK, "nvlink-0"
	}
	for k := range gpus {
		s.state.Slots = append(s.state.Slots, &dxpuv1.ObservedSlot{Slot: uint32(k), Health: dxpuv1.Health_HEALTH_OK, Device: &dxpuv1.Device{
			Model: model, MemoryBytes: 80 << 30, Serial: fmt.Sprintf("s-%d", i*gpus+k), NvlinkDomain: domain,
			VendorId: 0x10de, DeviceId: 0x20b0,
		}})
	}
	for k := range gpus * parts {
		gpu := uint32(k / parts)
		s.state.Slots[gpu].Device.ShareModes = []dxpuv1.ShareMode{dxpuv1.ShareMode_SHARE_MODE_SPACE, dxpuv1.ShareMode_SHARE_MODE_TIME, dxpuv1.ShareMode_SHARE_MODE_PARTITION}
		s.state.Slots = append(s.state.Slots, &dxpuv1.ObservedSlot{
			Slot: uint32(gpus + k), PartOf: &gpu, Health: dxpuv1.Health_HEALTH_OK, Device: &dxpuv1.Device{Model: model, VendorId: 0x10de, DeviceId: 0x20b0},
		})
	}
}

func (s *simulated) host(i, slots int) {
	s.kind, s.name, s.reaches = dxpuv1.NodeKind_NODE_KIND_HOST, fmt.Sprintf("host-%05d", i), dxpuv1.BindingState_BINDING_STATE_ATTACHED
	s.state.Rack, s.state.Labels = fmt.Sprintf("rack-%d", i/8), map[string]string{"zone": fmt.Sprintf("z%d", i%8)}
	for k := range slots {
		s.state.Slots = append(s.state.Slots, &dxpuv1.ObservedSlot{Slot: uint32(k), Domain: "vm0", Health: dxpuv1.Health_HEALTH_OK})
	}
}

// Apply implements agent.Handler.
func (s *simulated) Apply(d *dxpuv1.DesiredState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.want = d
}

// Observe implements agent.Handler.
func (s *simulated) Observe() *dxpuv1.ObservedState {
	s.reports.Add(1)
	s.enrolled()
	s.mu.Lock()
	want := s.want
	s.mu.Unlock()
	// Reports share devices and addresses, which are never changed.
	out := &dxpuv1.ObservedState{
		AppliedRevision: want.GetRevision(), Rack: s.state.Rack, Labels: s.state.Labels, Addresses: s.state.Addresses,
		BoxKind: s.state.BoxKind, ProxyGpus: s.state.ProxyGpus, Slots: make([]*dxpuv1.ObservedSlot, len(s.state.Slots)),
	}
	copy(out.Slots, s.state.Slots)
	for _, b := range want.GetBindings() {
		old := s.state.Slots[b.Slot]
		out.Slots[b.Slot] = &dxpuv1.ObservedSlot{
			Slot: b.Slot, Device: old.Device, Domain: old.Domain, Health: old.Health, PartOf: old.PartOf,
			Binding: &dxpuv1.ObservedBinding{BindingId: b.BindingId, Epoch: b.Epoch, State: s.reaches, Counters: &dxpuv1.Counters{}, Part: b.Part},
		}
	}
	return out
}
