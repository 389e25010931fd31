// Package member makes the sharing agent of a machine a member of a pool: it is two nodes
// there, a box with the GPUs of the machine, and a host for its programs. Both talk to the
// manager as the nodes of a network do (package agent); package offer decides what their
// desired states mean for the shares of the machine.
package member

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/offer"
)

const (
	// lookPeriod is the time between two looks at the shares if nothing has changed.
	lookPeriod = time.Second
	// pace is the least time between two looks: programs change the account of their
	// memory more often than the manager has to know.
	pace = 20 * time.Millisecond
	// maxRounds bounds the looks in a row that lead to actions.
	maxRounds = 8
)

// Sharing is the sharing agent.
type Sharing interface {
	Offered() offer.Seen
	Do(*offer.Action) error
	Ready() <-chan struct{}
	Changes() <-chan struct{}
}

// Config describes a member.
type Config struct {
	// Node is common to both nodes: manager, token, authority, version. Its StateDir has a
	// folder for each.
	Node      agent.Config
	Host, Box string // names of the nodes
	Rack      string
	Labels    map[string]string
	GPUs      func() []offer.GPU // those that are offered now
	Mode      dxpuv1.ShareMode
	Sharing   Sharing
	Log       *slog.Logger
}

// Member is the two nodes. Make one with New, and let Run work.
type Member struct {
	config    Config
	start     time.Time
	box, host *agent.Agent
	wake      chan struct{} // one element: look now

	mu    sync.Mutex // guards the offer
	offer *offer.Offer

	reported [2][]byte // the last states that the nodes were to report, for run only
}

// New returns a member.
func New(c Config) (*Member, error) {
	m := &Member{config: c, start: time.Now(), wake: make(chan struct{}, 1), offer: offer.New(c.GPUs(), c.Mode)}
	var err error
	if m.box, err = m.node("box", c.Box, dxpuv1.NodeKind_NODE_KIND_BOX, &boxNode{m}); err != nil {
		return nil, err
	}
	m.host, err = m.node("host", c.Host, dxpuv1.NodeKind_NODE_KIND_HOST, &hostNode{m})
	return m, err
}

func (m *Member) node(folder, name string, kind dxpuv1.NodeKind, h agent.Handler) (*agent.Agent, error) {
	c := m.config.Node
	c.Kind, c.Name, c.Log = kind, name, m.config.Log.With("node", name)
	if c.StateDir != "" {
		c.StateDir = filepath.Join(c.StateDir, folder)
	}
	return agent.New(c, h)
}

// Connected reports whether the manager has the last reports of both nodes.
func (m *Member) Connected() bool { return m.box.Connected() && m.host.Connected() }

// Run serves until its context ends.
func (m *Member) Run(ctx context.Context) error {
	select {
	case <-m.config.Sharing.Ready():
	case <-ctx.Done():
		return nil
	}
	m.look() // a report without the shares that are there would end their leases
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return m.box.Run(ctx) })
	g.Go(func() error { return m.host.Run(ctx) })
	g.Go(func() error { return m.run(ctx) })
	return g.Wait()
}

func (m *Member) run(ctx context.Context) error {
	tick := time.NewTicker(lookPeriod)
	defer tick.Stop()
	rest := time.NewTimer(0)
	defer rest.Stop()
	for {
		select {
		case <-m.wake:
		case <-m.config.Sharing.Changes():
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		m.look()
		rest.Reset(pace)
		select {
		case <-rest.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// look brings the shares to what the manager wants, and tells it of changes.
func (m *Member) look() {
	for range maxRounds {
		seen := m.config.Sharing.Offered()
		gpus := m.config.GPUs()
		m.mu.Lock()
		m.offer.SetGPUs(gpus)
		actions := m.offer.Step(m.now(), seen)
		m.mu.Unlock()
		if len(actions) == 0 {
			break
		}
		for i := range actions {
			m.do(&actions[i])
		}
	}
	m.tell()
}

func (m *Member) now() time.Duration { return time.Since(m.start) }

func (m *Member) do(a *offer.Action) {
	err := m.config.Sharing.Do(a)
	if err == nil {
		return
	}
	m.config.Log.Warn("the manager's wish is not carried out", "action", a.Kind.String(), "lease", a.Lease.Lease, "binding", a.ID, "error", err)
	m.mu.Lock()
	m.offer.Failed(a, err)
	m.mu.Unlock()
}

// tell lets the nodes report at once what has changed.
func (m *Member) tell() {
	m.mu.Lock()
	states := [2]*dxpuv1.ObservedState{m.offer.Box(), m.offer.Host(m.now())}
	m.mu.Unlock()
	for i, a := range []*agent.Agent{m.box, m.host} {
		text, err := proto.MarshalOptions{Deterministic: true}.Marshal(states[i])
		if err == nil && !bytes.Equal(text, m.reported[i]) {
			m.reported[i] = text
			a.Changed()
		}
	}
}

// want gives the machine a desired state, and looks soon.
func (m *Member) want(take func(*dxpuv1.DesiredState), d *dxpuv1.DesiredState) {
	m.mu.Lock()
	take(d)
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// observed completes the report of a node. A manager that does not know local peers would
// give the GPUs to other hosts: it sees none.
func (m *Member) observed(out *dxpuv1.ObservedState, a *agent.Agent, peer string) *dxpuv1.ObservedState {
	out.LocalPeer, out.SeveralGpus, out.Rack, out.Labels = peer, true, m.config.Rack, m.config.Labels
	if !a.KnowsLocalPeers() {
		out.Slots = nil
	}
	return out
}

// boxNode is the box, for its agent.
type boxNode struct{ *Member }

func (n *boxNode) Apply(d *dxpuv1.DesiredState) { n.want(n.offer.WantBox, d) }

func (n *boxNode) Observe() *dxpuv1.ObservedState {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.observed(n.offer.Box(), n.box, n.config.Host)
}

// hostNode is the host, for its agent.
type hostNode struct{ *Member }

func (n *hostNode) Apply(d *dxpuv1.DesiredState) { n.want(n.offer.WantHost, d) }

func (n *hostNode) Observe() *dxpuv1.ObservedState {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.observed(n.offer.Host(n.now()), n.host, n.config.Box)
}
