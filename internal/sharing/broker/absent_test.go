package broker_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// After a restart, memory that processes of the former agent may have is granted to no program
// until they have come back, or had the time to.
func TestMemoryOfAbsentProcesses(t *testing.T) {
	x := newTable(t, broker.Config{GPUs: gpus[:1]})
	x.create(spec{ID: "a", Memory: 4 * gib})
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
	x.create(spec{ID: "a", Memory: 4 * gib})
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
	x.b.Settle(x.now)
	x.flush()
	if m := x.last(3); m.Type != wire.Granted {
		t.Errorf("answer %+v", m)
	}
	if got := x.used("a"); got != 2*gib {
		t.Errorf("%d bytes used", got)
	}
}

// An agent that was silent breaks with the processes, because each may have gone on alone. No
// process gets the memory that they may have taken until all are back or have ended.
func TestLapse(t *testing.T) {
	x := newTable(t, broker.Config{GPUs: gpus[:1], Agent: 6})
	x.create(spec{ID: "a", Memory: 4 * gib})
	for id := range broker.ProcessID(3) {
		x.connect(id+1, "a", 11+int(id))
	}
	if !x.allocate(3, gib) {
		t.Fatal("no memory")
	}
	x.b.Lapse(7)
	x.flush()
	if len(x.closed) != 3 {
		t.Errorf("connections %v are closed, want all", x.closed)
	}
	if p, _ := x.b.Page("a"); p.Agent != 7 || p.GPUs[0].Used != 4*gib || p.Processes != 3 {
		t.Errorf("page %+v", p)
	}
	x.connect(12, "a", 12) // a GiB is its part of what was left
	x.send(12, wire.Message{Type: wire.Holds, Arg: [wire.Args]uint64{gib}})
	if !x.allocate(12, gib) {
		t.Error("a process that is back does not have what it could take alone")
	}
	x.send(12, wire.Message{Type: wire.Allocate, ID: 2, Bytes: gib})
	x.connect(11, "a", 11)
	x.send(11, wire.Message{Type: wire.Holds, Bytes: gib, Arg: [wire.Args]uint64{gib}})
	if n := len(x.got[12]); n > 0 {
		t.Errorf("answers %+v while a process may have the memory", x.got[12])
	}
	x.b.Ended(x.now, 3)
	x.flush()
	if m := x.last(12); m.Type != wire.Granted || m.ID != 2 {
		t.Errorf("answer %+v after all are back or have ended", m)
	}
	if got := x.used("a"); got != 3*gib {
		t.Errorf("%d bytes used", got)
	}
}

// A process whose ID is not known is no member without its connection. Its memory is absent
// until it had the time to come back.
func TestLapseOfUnknownProcess(t *testing.T) {
	x := newTable(t, broker.Config{GPUs: gpus[:1]})
	x.create(spec{ID: "a", Memory: 4 * gib})
	x.connect(1, "a", 0)
	x.connect(2, "a", 12)
	if !x.allocate(1, gib) {
		t.Fatal("no memory")
	}
	x.b.Lapse(7)
	x.flush()
	x.connect(12, "a", 12)
	x.send(12, wire.Message{Type: wire.Holds, Arg: [wire.Args]uint64{3 * gib / 2}})
	x.send(12, wire.Message{Type: wire.Allocate, ID: 1, Bytes: 4 * gib})
	if got := x.used("a"); got != 5*gib/2 || len(x.got[12]) > 0 {
		t.Errorf("%d bytes used, answers %+v", got, x.got[12])
	}
	x.b.Settle(x.now)
	x.flush()
	if m := x.last(12); m.Type != wire.Granted {
		t.Errorf("answer %+v", m)
	}
}

// A process gives a connection up that the agent has not accepted, and the agent accepts
// it with the next one. The memory of the process counts once.
func TestConnectionThatWasGivenUp(t *testing.T) {
	x := newTable(t, broker.Config{GPUs: gpus[:1]})
	x.create(spec{ID: "a", Memory: 4 * gib})
	x.connect(1, "a", 11)
	if !x.allocate(1, 3*gib) {
		t.Fatal("no memory")
	}
	x.b.Lapse(7)
	x.flush()
	x.connect(2, "a", 11)
	x.connect(3, "a", 11)
	x.send(3, wire.Message{Type: wire.Holds, Bytes: 3 * gib, Arg: [wire.Args]uint64{4 * gib}})
	x.b.Closed(x.now, 2)
	x.flush()
	if p, _ := x.b.Page("a"); p.GPUs[0].Used != 3*gib || p.Processes != 1 {
		t.Errorf("page %+v", p)
	}
	x.send(3, wire.Message{Type: wire.Free, Bytes: 3 * gib})
	if got := x.used("a"); got != 0 {
		t.Errorf("%d bytes used", got)
	}
}

// A program that replaces itself by another one connects again, and says that it has nothing:
// the driver has freed the memory. The agent may see the end of the former connection before
// that, between, or after.
func TestExec(t *testing.T) {
	for name, order := range map[string]string{"before": "CNH", "between": "NCH", "after": "NHC"} {
		t.Run(name, func(t *testing.T) {
			x := newTable(t, broker.Config{GPUs: gpus[:1]})
			x.create(spec{ID: "a", Memory: 4 * gib})
			x.connect(1, "a", 11)
			x.send(1, wire.Message{Type: wire.Holds})
			if !x.allocate(1, 3*gib) {
				t.Fatal("no memory")
			}
			for _, step := range order {
				switch step {
				case 'C':
					x.b.Closed(x.now, 1)
				case 'N':
					x.connect(2, "a", 11)
				case 'H':
					x.send(2, wire.Message{Type: wire.Holds})
				}
				x.flush()
			}
			if !x.allocate(2, 4*gib) {
				t.Error("the program does not get the memory of the share")
			}
			if p, _ := x.b.Page("a"); p.GPUs[0].Used != 4*gib || p.Processes != 1 {
				t.Errorf("page %+v", p)
			}
			x.b.Ended(x.now, 2)
			x.flush()
			if p, _ := x.b.Page("a"); p.GPUs[0].Used != 0 || p.Processes != 0 {
				t.Errorf("page %+v after the end", p)
			}
		})
	}
}

// A share that is ended before the processes of a former agent have come back waits for them:
// they are asked to end, too.
func TestEndBeforeProcessesAreBack(t *testing.T) {
	x := newTable(t, broker.Config{GPUs: gpus[:1]})
	x.create(spec{ID: "a", Memory: 4 * gib})
	x.b.Restored("a")
	if err := x.b.End(x.now, "a", time.Second); err != nil {
		t.Fatal(err)
	}
	x.flush()
	if len(x.gone) > 0 {
		t.Fatal("the share has ended, and its programs have not been asked")
	}
	if left, _ := x.b.Left(0); left != gpus[0].Device.Memory-4*gib {
		t.Errorf("%d bytes left", left)
	}
	x.now = 2 * time.Second
	x.flush()
	if err := x.b.Connect(x.now, 1, "a", 11); err != nil {
		t.Fatal(err)
	}
	x.send(1, wire.Message{Type: wire.Hello, ID: wire.Version})
	if m := x.last(1); m.Type != wire.End {
		t.Errorf("answer %+v", m)
	}
	x.now = 3 * time.Second
	x.flush()
	if len(x.killed) != 1 {
		t.Errorf("processes %v are killed after the grace", x.killed)
	}
	x.b.Ended(x.now, 1)
	x.flush()
	if len(x.gone) > 0 {
		t.Error("the share has ended while others may come back")
	}
	x.b.Settle(x.now)
	x.flush()
	if len(x.gone) != 1 {
		t.Errorf("shares %v have ended", x.gone)
	}
}

// A share that shrinks before the processes of a former agent are back keeps the room that they
// may use.
func TestShrinkBeforeProcessesAreBack(t *testing.T) {
	x := newTable(t, broker.Config{GPUs: gpus[:1]})
	x.create(spec{ID: "a", Memory: 4 * gib})
	x.b.Restored("a")
	if err := x.resize(spec{ID: "a", Memory: gib}); err != nil {
		t.Fatal(err)
	}
	whole := gpus[0].Device.Memory
	if left, _ := x.b.Left(0); left != whole-4*gib {
		t.Errorf("%d bytes left, and a process may have 4 GiB", left)
	}
	x.connect(1, "a", 11)
	x.send(1, wire.Message{Type: wire.Holds, Bytes: 3 * gib, Arg: [wire.Args]uint64{3 * gib}})
	if got := x.used("a"); got != 4*gib { // the rest may be that of another one
		t.Errorf("%d bytes used", got)
	}
	x.b.Settle(x.now)
	x.flush()
	if left, _ := x.b.Left(0); left != whole-3*gib || x.used("a") != 3*gib {
		t.Errorf("%d bytes left, %d used", left, x.used("a"))
	}
}

// Processes of a former agent that come back to a GPU which is out of service are asked to
// end, and the GPU counts as used until they had the time to.
func TestStoppedGPUOfAbsentProcesses(t *testing.T) {
	x := newTable(t, broker.Config{GPUs: gpus[:1]})
	x.create(spec{ID: "a", Memory: gib})
	x.b.Restored("a")
	x.b.Stop(x.now, 0, "XID 95", time.Second)
	x.flush()
	if !x.b.Busy(0) {
		t.Error("the GPU is not used, and programs may come back")
	}
	if err := x.b.Connect(x.now, 1, "a", 11); err != nil {
		t.Fatal(err)
	}
	x.send(1, wire.Message{Type: wire.Hello, ID: wire.Version, Arg: [wire.Args]uint64{11, wire.Tells}})
	x.send(1, wire.Message{Type: wire.Holds, Bytes: gib})
	if m := x.last(1); m.Type != wire.End {
		t.Errorf("answer %+v", m)
	}
	x.b.Settle(x.now)
	if !x.b.Busy(0) {
		t.Error("the GPU is not used, and a program has memory of it")
	}
	x.b.Ended(x.now, 1)
	if x.b.Busy(0) {
		t.Error("the GPU is used")
	}
	if err := x.b.Connect(x.now, 2, "a", 12); err == nil {
		t.Error("a new program begins on a GPU that is out of service")
	}
}
