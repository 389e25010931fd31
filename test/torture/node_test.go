package torture

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/pool/revision"
)

// simNode is a proxy without a data path. It applies its desired state after short
// delays, slot by slot as real proxies do, and checks that state.
type simNode struct {
	name      string
	kind      dxpuv1.NodeKind
	slots     int
	stateDir  string
	managers  string
	http      *http.Client
	violation func(format string, args ...any)
	placed    func(binding *dxpuv1.DesiredBinding, at string)
	log       lastLines

	mu      sync.Mutex
	rng     *rand.Rand
	applied uint64
	have    []slotState
	era     uint64 // the incarnation of the pool
	first   bool   // the next desired state is the first since the start: it may come from disk
	client  *agent.Agent
	stop    context.CancelFunc
	done    chan struct{}
}

// slotState is one slot's controller.
type slotState struct {
	want  *dxpuv1.DesiredBinding // nil: nothing
	has   *dxpuv1.DesiredBinding // the actual binding; nil: nothing
	state dxpuv1.BindingState
	due   time.Time // of the next step
	// wantEra and hasEra are the incarnations of the pool that gave want and has.
	wantEra, hasEra uint64
	// wantOld and hasOld are set for a binding that the node has read from its disk.
	wantOld, hasOld bool
	// stale: the binding comes from a disk that may be older than the manager's state.
	stale bool
	// reported is set once a report has said that the last binding is gone: only
	// then may another one come.
	reported bool
	move     *dxpuv1.Migration // the report on a live migration; nil: none. It is not changed
}

// start runs the node until halt. It starts without bindings, as after a power cut.
func (n *simNode) start() error {
	n.mu.Lock()
	n.have = make([]slotState, n.slots)
	for i := range n.have {
		n.have[i].reported = true
	}
	n.applied, n.first = 0, true
	n.mu.Unlock()
	c, err := agent.New(agent.Config{
		Manager: n.managers, JoinToken: joinToken, Kind: n.kind, Name: n.name, Version: "torture", StateDir: n.stateDir, HTTPClient: n.http,
		Log: slog.New(slog.NewTextHandler(&n.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}, n)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	n.mu.Lock()
	n.client, n.stop, n.done = c, cancel, done
	n.mu.Unlock()
	go func() {
		defer close(done)
		var work sync.WaitGroup
		work.Go(func() { n.run(ctx) })
		if err := c.Run(ctx); err != nil {
			n.violation("%s stopped: %v", n.name, err)
		}
		work.Wait()
	}()
	return nil
}

func (n *simNode) halt() {
	n.mu.Lock()
	stop, done := n.stop, n.done
	n.mu.Unlock()
	stop()
	<-done
}

// restart stops the node and starts it again; old: with the disk as of the last
// call of keepState.
func (n *simNode) restart(old bool) error {
	n.halt()
	return n.comeBack(old)
}

// comeBack starts a node that was stopped; old: see restart.
func (n *simNode) comeBack(old bool) error {
	if old {
		if _, err := os.Stat(n.stateDir + ".old"); err == nil {
			if err := os.RemoveAll(n.stateDir); err != nil {
				return err
			}
			if err := os.CopyFS(n.stateDir, os.DirFS(n.stateDir+".old")); err != nil {
				return err
			}
		}
	}
	return n.start()
}

// keepState copies the node's disk for a later restart with old state.
func (n *simNode) keepState() error {
	if err := os.RemoveAll(n.stateDir + ".old"); err != nil {
		return err
	}
	err := os.CopyFS(n.stateDir+".old", os.DirFS(n.stateDir))
	if os.IsNotExist(err) { // a file was replaced while it was copied
		return os.RemoveAll(n.stateDir + ".old")
	}
	return err
}

// run takes the steps that are due.
func (n *simNode) run(ctx context.Context) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			n.mu.Lock()
			changed := false
			for i := range n.have {
				changed = n.stepLocked(&n.have[i], now) || n.moveLocked(&n.have[i], now) || changed
			}
			n.mu.Unlock()
			if changed {
				n.client.Changed()
			}
		}
	}
}

func (n *simNode) stepLocked(s *slotState, now time.Time) bool {
	if now.Before(s.due) {
		return false
	}
	host := n.kind == dxpuv1.NodeKind_NODE_KIND_HOST
	same := s.want != nil && s.has != nil && (isBinding(s.want, s.has) || isBinding(s.want.Successor, s.has))
	switch {
	case s.has != nil && !same && s.state != resetting && s.state != detaching:
		s.state = resetting
		if host {
			s.state = detaching
		}
	case s.has != nil && !same:
		s.has, s.move, s.state, s.stale, s.reported = nil, nil, 0, false, false // the slot is clean
	case s.has == nil && s.want != nil && s.reported:
		s.has, s.state, s.hasEra, s.hasOld = s.want, preparing, s.wantEra, s.wantOld
	case s.has == nil || s.state == attached || s.state == lost:
		return false
	case s.state == preparing && !host:
		s.state = ready
	case s.state == preparing || s.state == ready:
		s.state = attached
	default:
		return false
	}
	s.due = now.Add(time.Duration(n.rng.IntN(20)) * time.Millisecond)
	return true
}

// isBinding reports whether a slot has a binding that is wanted.
func isBinding(want, has *dxpuv1.DesiredBinding) bool {
	return want.GetBindingId() == has.BindingId && want.GetEpoch() == has.Epoch
}

const (
	preparing = dxpuv1.BindingState_BINDING_STATE_PREPARING
	ready     = dxpuv1.BindingState_BINDING_STATE_READY
	attached  = dxpuv1.BindingState_BINDING_STATE_ATTACHED
	detaching = dxpuv1.BindingState_BINDING_STATE_DETACHING
	resetting = dxpuv1.BindingState_BINDING_STATE_RESETTING
	lost      = dxpuv1.BindingState_BINDING_STATE_LOST
	copying   = dxpuv1.BindingState_BINDING_STATE_COPYING
	switching = dxpuv1.BindingState_BINDING_STATE_SWITCHING
)

// Apply implements agent.Handler. It detects a GPU that the manager binds twice.
func (n *simNode) Apply(d *dxpuv1.DesiredState) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.first && d.Revision != n.applied && !revision.Replaces(d.Revision, n.applied) {
		n.violation("%s received revision %d after %d", n.name, d.Revision, n.applied)
	}
	n.era = revision.Incarnation(d.Revision)
	for i := range n.have {
		want := agent.Wanted(d, i)
		if want != nil {
			n.placed(want, fmt.Sprintf("%s slot %d", n.name, i))
		}
		n.wantLocked(i, want)
	}
	n.first = false
	n.applied = d.Revision
}

// wantLocked sets a slot's desired binding.
func (n *simNode) wantLocked(slot int, want *dxpuv1.DesiredBinding) {
	s := &n.have[slot]
	box := n.kind == dxpuv1.NodeKind_NODE_KIND_BOX
	if box && want != nil && s.has != nil && !s.stale && s.hasEra == n.era && (want.BindingId != s.has.BindingId || want.Epoch != s.has.Epoch) {
		n.violation("%s slot %d received %s (epoch %d) while it has %s (epoch %d, %v)",
			n.name, slot, want.BindingId, want.Epoch, s.has.BindingId, s.has.Epoch, s.state)
	}
	// A node that restarts does not resume a binding: its link is gone.
	began := preparing
	if !box {
		began = ready
	}
	if want != nil && s.has == nil && want.State != began && s.reported {
		s.has, s.state, s.hasEra, s.hasOld = want, lost, n.era, n.first
		s.stale = n.first
	}
	s.want, s.wantEra, s.wantOld = want, n.era, n.first
}

// Observe implements agent.Handler.
func (n *simNode) Observe() *dxpuv1.ObservedState {
	n.mu.Lock()
	defer n.mu.Unlock()
	o := &dxpuv1.ObservedState{
		AppliedRevision: n.applied, Rack: "r1", BoxKind: dxpuv1.BoxKind_BOX_KIND_PCIE_SWITCH,
		Addresses: []*dxpuv1.PathAddress{{Address: "127.0.0.1:7471"}},
	}
	for i := range n.have {
		s := &n.have[i]
		r := &dxpuv1.ObservedSlot{Slot: uint32(i), Health: dxpuv1.Health_HEALTH_OK, Movable: true}
		if n.kind == dxpuv1.NodeKind_NODE_KIND_BOX {
			r.Device = &dxpuv1.Device{Model: "T", MemoryBytes: 1 << 30, Serial: fmt.Sprintf("%s-%d", n.name, i)}
		} else {
			r.Domain = "vm0"
		}
		if s.has != nil {
			r.Binding = &dxpuv1.ObservedBinding{BindingId: s.has.BindingId, Epoch: s.has.Epoch, State: s.state, Migration: s.move}
		} else {
			s.reported = true
		}
		o.Slots = append(o.Slots, r)
	}
	return o
}

// idle reports whether no slot has or should have a binding.
func (n *simNode) idle() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range n.have {
		if n.have[i].has != nil || n.have[i].want != nil {
			return false
		}
	}
	return true
}

// String formats the node's actual and desired bindings and the end of its log.
func (n *simNode) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := fmt.Sprintf("%s (connected %v, revision %d):", n.name, n.client.Connected(), n.applied)
	for i, s := range n.have {
		out += fmt.Sprintf(" %d: has %s %v, should have %s;", i, s.has.GetBindingId(), s.state, s.want.GetBindingId())
	}
	return out + "\n" + n.log.String()
}

// lastLines is a log that keeps its last 30 lines.
type lastLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *lastLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(b))
	l.lines = l.lines[max(0, len(l.lines)-30):]
	return len(b), nil
}

func (l *lastLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "")
}
