package broker_test

import (
	"testing"

	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// After a restart, memory that processes of the former agent may have is granted to no program
// until they have come back, or had the time to.
func TestMemoryOfAbsentProcesses(t *testing.T) {
	x := newTable(t, broker.Config{GPUs: gpus[:1]})
	x.create(broker.Spec{ID: "a", Memory: 4 * gib})
	x.b.Restored("a")
	if got := x.used("a"); got != 4*gib {
		t.Errorf("the page tells %d bytes in use, want all", got)
	}
	for id := range broker.ProcessID(3) {
		x.connect(id+1, "a", 11+int(id))
	}
	silent := func(id broker.ProcessID) {
		t.Helper()
		if n := len(x.got[id]); n > 0 {
			t.Errorf("process %d got %+v", id, x.got[id])
		}
	}
	ask := func(id broker.ProcessID, bytes uint64) {
		x.send(id, wire.Message{Type: wire.Allocate, ID: 1, Bytes: bytes})
	}
	ask(3, 2*gib) // it is new
	silent(3)
	x.send(1, wire.Message{Type: wire.Holds, Bytes: gib, Arg: [wire.Args]uint64{2 * gib}})
	silent(3)
	if !x.allocate(1, gib) || x.allocate(1, 3*gib) {
		t.Error("a process that came back does not have its most, or has more than the limit")
	}
	ask(1, 1)
	silent(1)
	x.send(2, wire.Message{Type: wire.Holds, Bytes: gib, Arg: [wire.Args]uint64{2 * gib}})
	if m := x.last(3); m.Type != wire.Refused {
		t.Errorf("answer %+v: the share has 1 GiB left", m)
	}
	if m := x.last(1); m.Type != wire.Granted {
		t.Errorf("answer %+v", m)
	}
	if got := x.used("a"); got != 3*gib+1 {
		t.Errorf("%d bytes used", got)
	}
}

// Requests for memory of absent processes have their answers when these had the time to come
// back; a flood of them is refused, and those of an ended process are forgotten.
func TestRequestsThatWait(t *testing.T) {
	x := newTable(t, broker.Config{GPUs: gpus[:1]})
	x.create(broker.Spec{ID: "a", Memory: 4 * gib})
	x.b.Restored("a")
	for id := range broker.ProcessID(3) {
		x.connect(id+1, "a", 11+int(id))
	}
	for i := range uint64(wire.MaxUnanswered + 1) {
		x.send(1, wire.Message{Type: wire.Allocate, ID: i, Bytes: 1})
	}
	if m := x.last(1); m.Type != wire.Reject || wire.Reason(m.Arg[0]) != wire.TooMany {
		t.Errorf("answer %+v", m)
	}
	x.send(2, wire.Message{Type: wire.Allocate, Bytes: 3 * gib})
	x.send(3, wire.Message{Type: wire.Allocate, Bytes: 2 * gib})
	x.b.Ended(0, 2)
	x.b.Settle()
	x.flush()
	if m := x.last(3); m.Type != wire.Granted {
		t.Errorf("answer %+v", m)
	}
	if got := x.used("a"); got != 2*gib {
		t.Errorf("%d bytes used", got)
	}
}
