package hostproxy

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/migration"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/tlp"
)

// perBinding notes what goes to each box.
type perBinding map[*engine.Binding][]string

func (perBinding) Watching() bool { return true }

func (p perBinding) TLP(b *engine.Binding, received bool, t *tlp.Packet) {
	if received {
		return
	}
	if m, ok := migration.Parse(t); ok {
		p[b] = append(p[b], m.Order.String())
		return
	}
	p[b] = append(p[b], "write")
}

// trial is one migration under events.
type trial struct {
	e      engine.Entry
	slot   *slot
	next   *succession
	source *engine.Binding
	sent   perBinding
	// The answers of the boxes while the host waited for them.
	stopped, installed bool
	lost               bool // the link of the slot's device
	writes             int  // of a neighbour, while the device was there
}

func newTrial(t *testing.T) *trial {
	r := &trial{sent: perBinding{}}
	r.e, r.slot, r.next = newSuccession(t, engine.Config{Watcher: r.sent})
	r.source = r.slot.binding
	r.slot.host.group = &sharedGroup{entry: r.e}
	return r
}

// events can happen to a migration at any time.
var events = []struct {
	name string
	do   func(r *trial)
}{
	{"switch", func(r *trial) {
		if r.slot.next != nil {
			r.slot.stopSource()
		}
	}},
	{"stopped", func(r *trial) {
		r.stopped = r.stopped || r.slot.moving()
		r.fromSource(migration.Stopped)
	}},
	{"installed", func(r *trial) {
		r.installed = r.installed || r.slot.moving()
		r.fromTarget(migration.Installed)
	}},
	{"the source speaks for the target", func(r *trial) { r.fromSource(migration.Installed) }},
	{"the target speaks for the source", func(r *trial) { r.fromTarget(migration.Stopped) }},
	{"source refuses", func(r *trial) { r.fromSource(migration.Refused) }},
	{"target refuses", func(r *trial) { r.fromTarget(migration.Refused) }},
	{"a neighbour writes", func(r *trial) {
		if !r.lost {
			r.writes++
		}
		r.slot.forward(r.e, posted())
	}},
	{"time limit", func(r *trial) { r.pass(time.Minute) }},
	{"target's link ends", func(r *trial) {
		if r.next.phase == switched {
			r.lose()
		} else {
			r.next.LinkChanged(r.e, link.Down)
		}
	}},
	{"source's link ends", func(r *trial) {
		if r.next.phase != switched { // afterwards its handler is silent
			r.lose()
		}
	}},
	{"withdrawn", func(r *trial) {
		if r.slot.next != nil && r.next.phase != switched {
			r.slot.endSuccession()
		}
	}},
}

// fromSource says something in the link of the source, which no handler reads after the
// switch.
func (r *trial) fromSource(o migration.Order) {
	if r.slot.binding == r.source {
		r.slot.Receive(r.e, said(o))
	}
}

func (r *trial) fromTarget(o migration.Order) {
	if r.slot.binding == r.source {
		r.next.Receive(r.e, said(o))
		return
	}
	r.slot.Receive(r.e, said(o))
}

func (r *trial) lose() {
	r.lost = true
	r.slot.LinkChanged(r.e, link.Down)
}

// pass lets time pass.
func (r *trial) pass(d time.Duration) {
	r.next.deadline -= min(d, r.next.deadline)
	r.slot.release(r.e)
}

// wrong returns what is wrong with the migration; empty: nothing.
func (r *trial) wrong() string {
	source, target := r.sent[r.source], r.sent[r.next.binding]
	orders := func(of []string, o string) int { return strings.Count(strings.Join(of, " "), o) }
	starts, stops, resumes := orders(target, "start"), orders(source, "stop"), orders(source, "resume")
	switch {
	case starts > 0 && !(r.stopped && r.installed):
		return "the target starts without both answers"
	case starts > 1 || stops > 1 || resumes > 1 || starts > 0 && resumes > 0:
		return "both devices go on, or one twice"
	case (r.slot.binding == r.next.binding) != (r.next.phase == switched):
		return "the slot has the device of the other phase"
	case r.slot.moving() && stops == 0:
		return "the slot waits, and the source was not told to stop"
	case r.lost:
		return "" // the GPU is replaced
	case !r.slot.moving() && stops > 0 && starts+resumes == 0:
		return "no device goes on"
	case !r.slot.moving() && r.slot.held():
		return "requests wait though no device stands still"
	}
	got := 0
	for _, of := range [][]string{source, target} {
		got += orders(of, "write")
	}
	if !r.slot.moving() && got != r.writes {
		return "a write was lost or came twice"
	}
	if at := slices.Index(target, "write"); at >= 0 && starts == 0 {
		return "the target got a write and was not started"
	}
	return ""
}

// TestEveryOrderOfFaults makes all events of a migration, which include the faults of both
// boxes, happen in every order, with repetitions: exactly one device goes on, with every
// write of its neighbours.
func TestEveryOrderOfFaults(t *testing.T) {
	faults := 0
	var try func(prefix []int, more int)
	try = func(prefix []int, more int) {
		r := newTrial(t)
		for i, n := range prefix {
			events[n].do(r)
			if why := r.wrong(); why != "" {
				var names []string
				for _, n := range prefix[:i+1] {
					names = append(names, events[n].name)
				}
				t.Fatalf("%s: %s; the source got %v, the target %v", strings.Join(names, ", "), why, r.sent[r.source], r.sent[r.next.binding])
			}
		}
		if r.next.phase == successionFailed {
			faults++
		}
		if more == 0 {
			return
		}
		for n := range events {
			try(append(prefix[:len(prefix):len(prefix)], n), more-1)
		}
	}
	depth := 4
	if testing.Short() || raceEnabled {
		depth = 3
	}
	try(nil, 3)
	try([]int{0}, depth) // most of them concern a source that is to stop
	if faults < 100 {
		t.Errorf("only %d migrations failed", faults)
	}
}
