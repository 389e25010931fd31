package offer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/share"
)

const (
	gib       = 1 << 30
	time2     = dxpuv1.ShareMode_SHARE_MODE_TIME
	preparing = dxpuv1.BindingState_BINDING_STATE_PREPARING
	ready     = dxpuv1.BindingState_BINDING_STATE_READY
	attached  = dxpuv1.BindingState_BINDING_STATE_ATTACHED
	detaching = dxpuv1.BindingState_BINDING_STATE_DETACHING
	resetting = dxpuv1.BindingState_BINDING_STATE_RESETTING
	failed    = dxpuv1.BindingState_BINDING_STATE_FAILED
	lost      = dxpuv1.BindingState_BINDING_STATE_LOST
)

// world is an offer with a sharing agent that does what it is told.
type world struct {
	t       *testing.T
	o       *Offer
	seen    Seen
	refuses error // of the agent
	done    []Action
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, seen: Seen{Conditions: map[string]Condition{}}}
	w.restart()
	return w
}

// restart begins a machine that knows nothing but the shares.
func (w *world) restart() {
	w.o = New([]GPU{
		{Name: "a", Place: 0, Device: &dxpuv1.Device{Model: "X", MemoryBytes: 16 * gib}},
		{Name: "b", Place: 3, Device: &dxpuv1.Device{Model: "X", MemoryBytes: 8 * gib}},
	}, time2)
}

// settle carries out actions until there are none.
func (w *world) settle() []Action {
	w.t.Helper()
	w.done = nil
	for range 20 {
		actions := w.o.Step(0, Seen{Shares: slices.Clone(w.seen.Shares), Conditions: w.seen.Conditions})
		if len(actions) == 0 {
			return w.done
		}
		for i := range actions {
			w.act(&actions[i])
		}
	}
	w.t.Fatalf("no end of actions: %+v", w.done)
	return nil
}

func (w *world) act(a *Action) {
	w.done = append(w.done, *a)
	if w.refuses != nil {
		w.o.Failed(a, w.refuses)
		return
	}
	if a.Kind == Open {
		w.seen.Shares = append(w.seen.Shares, Share{Lease: a.Lease, Memory: a.Memory, Kept: a.Memory, Compute: a.Compute, Offline: a.Offline})
		return
	}
	i := slices.IndexFunc(w.seen.Shares, func(s Share) bool { return s.Binding == a.Binding })
	s := &w.seen.Shares[i]
	switch a.Kind {
	case Attach:
		s.Attached = true
	case Resize:
		s.Memory, s.Compute = a.Memory, a.Compute
		s.Kept = max(s.Memory, int64(s.Processes)*gib)
	case End:
		s.Leaving = true
		if s.Processes == 0 {
			w.seen.Shares = slices.Delete(w.seen.Shares, i, i+1)
		}
	}
}

// wants returns a desired state with some bindings.
func wants(revision uint64, bindings ...*dxpuv1.DesiredBinding) *dxpuv1.DesiredState {
	return &dxpuv1.DesiredState{ClusterId: "c", Revision: revision, Bindings: bindings}
}

// inBox returns the box side of the binding b-1 of a part in a slot, and inHost its other side.
func inBox(slot uint32, memory uint64, compute uint32) *dxpuv1.DesiredBinding {
	return &dxpuv1.DesiredBinding{
		BindingId: "b-1", Epoch: 1, LeaseId: "l-1", Slot: slot, Peer: &dxpuv1.Peer{Slot: 5}, State: preparing,
		Part: &dxpuv1.Part{MemoryBytes: memory, Compute: compute, Class: dxpuv1.PartClass_PART_CLASS_OFFLINE},
	}
}

func inHost() *dxpuv1.DesiredBinding {
	return &dxpuv1.DesiredBinding{BindingId: "b-1", Epoch: 1, LeaseId: "l-1", Slot: 5, UnplugTimeout: durationpb.New(7 * time.Second)}
}

func slotOf(s *dxpuv1.ObservedState, slot uint32) *dxpuv1.ObservedSlot {
	i := slices.IndexFunc(s.Slots, func(x *dxpuv1.ObservedSlot) bool { return x.Slot == slot })
	if i < 0 {
		return nil
	}
	return s.Slots[i]
}

// expect checks what both nodes report of the binding; 0 is a clean slot.
func (w *world) expect(what string, box, host dxpuv1.BindingState) {
	w.t.Helper()
	b, h := slotOf(w.o.Box(), 61).GetBinding(), slotOf(w.o.Host(0), 5).GetBinding()
	if b.GetState() != box || h.GetState() != host {
		w.t.Errorf("%s: box %v, host %v; want %v and %v", what, b, h, box, host)
	}
}

// kinds returns the kinds of actions as words.
func kinds(actions []Action) (out string) {
	for i := range actions {
		out += actions[i].Kind.String() + " "
	}
	return strings.TrimSpace(out)
}

// attach brings the binding b-1 to a program that runs, in slot 61: the first part of b.
func attach(t *testing.T) *world {
	w := newWorld(t)
	w.o.WantBox(wants(1, inBox(61, 2*gib, 300)))
	w.o.WantHost(wants(1, inHost()))
	if got := kinds(w.settle()); got != "open attach" {
		t.Fatalf("actions %q", got)
	}
	w.seen.Shares[0].Processes = 1
	w.settle()
	return w
}

// A lease from its beginning to its end.
func TestLife(t *testing.T) {
	w := newWorld(t)
	w.o.WantHost(wants(1))
	w.o.WantBox(wants(1, inBox(61, 2*gib, 300)))
	w.expect("wanted", preparing, 0)
	if got := w.settle(); kinds(got) != "open" || got[0].Memory != 2*gib || got[0].Compute != 300_000 || !got[0].Offline ||
		got[0].Lease != (Lease{Binding: Binding{"c", "b-1", 1}, Lease: "l-1", BoxSlot: 61, HostSlot: 5}) {
		t.Fatalf("actions %+v", got)
	}
	w.expect("made", ready, 0)
	w.o.WantHost(wants(2, inHost()))
	w.expect("wanted by the host", ready, preparing)
	w.settle()
	w.expect("attached", ready, attached)
	if p := slotOf(w.o.Box(), 61).Binding.Part; p.MemoryBytes != 2*gib || p.Compute != 300 || p.Class != dxpuv1.PartClass_PART_CLASS_OFFLINE || p.Share != time2 {
		t.Errorf("part %v", p)
	}
	w.seen.Shares[0].Processes = 1
	w.settle()
	if use := slotOf(w.o.Host(0), 5).Binding.Use; use != dxpuv1.Use_USE_HELD {
		t.Errorf("use %v", use)
	}
	w.o.WantHost(wants(3))
	if got := w.settle(); kinds(got) != "end" || got[0].Grace != 7*time.Second {
		t.Fatalf("actions %+v", got)
	}
	w.expect("its programs are to end", ready, detaching)
	w.seen.Shares = nil
	if got := w.settle(); len(got) != 0 {
		t.Errorf("a share that has ended is made again: %+v", got)
	}
	w.expect("its programs have ended", ready, 0)
	w.o.WantBox(wants(2))
	w.settle()
	w.expect("released", 0, 0)
	if len(w.o.notes) > 0 || w.o.Box().AppliedRevision != 2 || w.o.Host(0).AppliedRevision != 3 {
		t.Errorf("left over: %v", w.o)
	}
}

// A lease that both sides drop ends at once, and the slots are clean after its programs.
func TestAbruptEnd(t *testing.T) {
	w := attach(t)
	w.o.WantBox(wants(2))
	w.o.WantHost(wants(2))
	if got := w.settle(); kinds(got) != "end" || got[0].Grace != abrupt {
		t.Fatalf("actions %+v", got)
	}
	w.expect("its programs are there", resetting, detaching)
	next := inBox(61, gib, 100)
	next.BindingId, next.Epoch = "b-2", 2
	w.o.WantBox(wants(3, next))
	if got := w.settle(); len(got) != 0 {
		t.Errorf("a slot is used twice: %+v", got)
	}
	w.seen.Shares = nil
	if got := kinds(w.settle()); got != "open" {
		t.Errorf("actions %q", got)
	}
}

// An agent that starts knows its shares, and does nothing before both desired states are
// known. Then the lease that was deleted meanwhile ends.
func TestRestart(t *testing.T) {
	w := attach(t)
	w.restart()
	if got := w.settle(); len(got) != 0 {
		t.Fatalf("actions %+v", got)
	}
	w.expect("nothing is known", ready, attached)
	w.o.WantBox(wants(5))
	if got := w.settle(); len(got) != 0 {
		t.Fatalf("actions %+v", got)
	}
	w.o.WantBox(wants(5, inBox(61, 2*gib, 300))) // the manager still waits for the programs
	w.o.WantHost(wants(5))
	if got := w.o.Step(0, w.seen); kinds(got) != "end" || got[0].Grace != unknownGrace {
		t.Errorf("actions %+v", got)
	}
	w.o.WantBox(wants(6))
	w.refuses = errors.New("not yet")
	for range 2 { // it is tried again
		if got := w.o.Step(0, w.seen); kinds(got) != "end" {
			t.Fatalf("actions %+v", got)
		} else {
			w.o.Failed(&got[0], w.refuses)
		}
	}
}

// A pool with the same names is another one.
func TestAnotherPool(t *testing.T) {
	w := attach(t)
	box, host := wants(1, inBox(61, 2*gib, 300)), wants(1, inHost())
	box.ClusterId, host.ClusterId = "d", "d"
	w.o.WantBox(box)
	w.o.WantHost(host)
	if got := w.settle(); kinds(got) != "end" || got[0].Pool != "c" {
		t.Errorf("actions %+v", got)
	}
}

// A binding whose share is lost is lost: programs of it may run alone.
func TestLostShare(t *testing.T) {
	w := attach(t)
	w.seen.Shares = nil
	box := inBox(61, 2*gib, 300)
	box.State = attached
	w.o.WantBox(wants(2, box))
	if got := w.settle(); len(got) != 0 {
		t.Errorf("actions %+v", got)
	}
	w.expect("lost", lost, preparing)
}

func TestResize(t *testing.T) {
	w := attach(t)
	w.seen.Shares[0].Processes = 2 // with 2 GiB
	w.o.WantBox(wants(2, inBox(61, gib, 500)))
	if got := kinds(w.settle()); got != "resize" {
		t.Fatalf("actions %q", got)
	}
	if p := slotOf(w.o.Box(), 61).Binding.Part; p.MemoryBytes != 2*gib || p.Compute != 500 {
		t.Errorf("a share that uses more than its limit reports %v", p)
	}
	w.refuses = errors.New("no room")
	w.o.WantBox(wants(3, inBox(61, 3*gib, 500)))
	w.settle()
	if got := w.settle(); len(got) != 0 {
		t.Errorf("a refused size is tried for ever: %+v", got)
	}
	w.refuses = nil
	w.o.WantBox(wants(4, inBox(61, 4*gib, 500)))
	if got := kinds(w.settle()); got != "resize" || w.seen.Shares[0].Memory != 4*gib {
		t.Errorf("actions %q", got)
	}
}

// Whole GPUs, and wishes that cannot be carried out.
func TestRefusals(t *testing.T) {
	w := newWorld(t)
	w.o.WantHost(wants(1))
	whole := inBox(3, 0, 0)
	whole.Part = nil
	w.o.WantBox(wants(1, whole))
	if got := w.settle(); kinds(got) != "open" || got[0].Memory != 8*gib || got[0].Compute != share.Whole {
		t.Errorf("actions %+v", got)
	}
	if b := slotOf(w.o.Box(), 3).Binding; b.State != ready || b.Part != nil {
		t.Errorf("binding %v", b)
	}
	unsized := inBox(61, 0, 0)
	unsized.Part = nil
	for what, b := range map[string]*dxpuv1.DesiredBinding{
		"no size": unsized, "too much memory": inBox(61, 8*gib+1, 100), "no memory": inBox(61, 0, 100), "too much compute": inBox(61, gib, 1001),
	} {
		w := newWorld(t)
		w.o.WantHost(wants(1))
		w.o.WantBox(wants(1, b))
		if got := w.settle(); len(got) != 0 {
			t.Errorf("%s: actions %+v", what, got)
		}
		w.expect(what, failed, 0)
	}
	w = newWorld(t)
	w.refuses = errors.New("the GPU is full")
	w.o.WantHost(wants(1))
	w.o.WantBox(wants(1, inBox(61, gib, 100)))
	if got := kinds(w.settle()); got != "open" {
		t.Errorf("actions %q", got)
	}
	if b := slotOf(w.o.Box(), 61).Binding; b.State != failed || b.Detail != "the GPU is full" {
		t.Errorf("binding %v", b)
	}
}

// The health of a GPU is that of its slots. Shares that no lease has keep new leases away.
func TestHealth(t *testing.T) {
	w := newWorld(t)
	w.seen.Conditions["a"] = Condition{Others: []string{"web", "s-1"}}
	w.seen.Conditions["b"] = Condition{Failed: "XID 79"}
	w.settle()
	box := w.o.Box()
	if len(box.Slots) != 2*(1+Parts) {
		t.Errorf("%d slots", len(box.Slots))
	}
	for _, s := range box.Slots {
		want, why := dxpuv1.Health_HEALTH_DEGRADED, "web, s-1"
		if s.Slot == 3 || s.GetPartOf() == 3 {
			want, why = dxpuv1.Health_HEALTH_FAILED, "XID 79"
		}
		if s.Health != want || !strings.Contains(s.HealthDetail, why) || s.Movable {
			t.Errorf("slot %v", s)
		}
	}
}

// With any wishes of the manager in any order, the machine makes a share for a wanted part of
// a GPU only, each binding and each slot has one at most, and unwanted shares end.
func TestAnyWishes(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t)
		draw := func() *dxpuv1.DesiredState {
			d := wants(r.Uint64N(9))
			d.ClusterId = fmt.Sprint(r.IntN(2))
			for range r.IntN(6) {
				b := inBox([]uint32{0, 3, 16, 17, 61, 62, 255, 256, 1 << 31}[r.IntN(9)], r.Uint64N(10*gib), r.Uint32N(1100))
				b.BindingId, b.Epoch, b.Peer.Slot = fmt.Sprint("b-", r.IntN(4)), r.Uint64N(3), r.Uint32N(60)
				d.Bindings = append(d.Bindings, b, nil)
			}
			return d
		}
		for range 20 {
			if r.IntN(2) == 0 {
				w.o.WantBox(draw())
			} else {
				w.o.WantHost(draw())
			}
			w.settle()
			w.o.Box()
			w.o.Host(0)
			w.check(seed)
			for i := range w.seen.Shares {
				w.seen.Shares[i].Processes = r.IntN(2)
			}
			w.seen.Shares = slices.DeleteFunc(w.seen.Shares, func(s Share) bool { return s.Leaving && s.Processes == 0 })
		}
		w.o.WantBox(wants(10))
		w.o.WantHost(wants(10))
		w.settle()
		w.seen.Shares = slices.DeleteFunc(w.seen.Shares, func(s Share) bool { return s.Leaving })
		w.settle()
		if len(w.seen.Shares) > 0 || len(w.o.notes) > 0 {
			t.Fatalf("seed %d: left over: %+v, %v", seed, w.seen.Shares, w.o.notes)
		}
	}
}

func (w *world) check(seed uint64) {
	w.t.Helper()
	slots, bindings := map[uint32]bool{}, map[Binding]bool{}
	for _, s := range w.seen.Shares {
		g, _ := w.o.at(s.BoxSlot)
		if g == nil || s.Memory < 1 || s.Memory > int64(g.Device.MemoryBytes) || s.Compute < 1 || s.Compute > share.Whole {
			w.t.Fatalf("seed %d: share %+v", seed, s)
		}
		if slots[s.BoxSlot] || bindings[s.Binding] {
			w.t.Fatalf("seed %d: twice: %+v", seed, s)
		}
		slots[s.BoxSlot], bindings[s.Binding] = true, true
	}
}

// The slot of a program stays in the report of the host while the GPU with the highest place is
// gone: a slot may have a part of any GPU. Numbers that no host has add no slots.
func TestHostSlotsWithoutTheLastGPU(t *testing.T) {
	w := newWorld(t)
	box, host := inBox(16, gib, 300), inHost()
	box.Peer.Slot, host.Slot = 50, 50
	w.o.WantBox(wants(1, box))
	w.o.WantHost(wants(1, host))
	w.settle()
	w.o.SetGPUs([]GPU{{Name: "a", Place: 0, Device: &dxpuv1.Device{Model: "X", MemoryBytes: 16 * gib}}})
	w.settle()
	if got := slotOf(w.o.Host(0), 50); got.GetBinding().GetState() != attached {
		t.Errorf("slot 50: %v", got)
	}
	w.restart()
	w.o.SetGPUs([]GPU{{Name: "a", Place: 0, Device: &dxpuv1.Device{Model: "X", MemoryBytes: 16 * gib}}})
	w.seen.Shares = nil
	far := inHost()
	far.Slot = 1<<32 - 1
	for _, c := range []struct {
		what  string
		wants *dxpuv1.DesiredState
		slots int
	}{{"nothing", wants(1), Parts}, {"a program in slot 50", wants(1, host), 51}, {"a slot that no host has", wants(1, far), Parts}} {
		w.o.WantHost(c.wants)
		w.settle()
		if got := len(w.o.Host(0).Slots); got != c.slots {
			t.Errorf("%s: %d slots, want %d", c.what, got, c.slots)
		}
	}
}
