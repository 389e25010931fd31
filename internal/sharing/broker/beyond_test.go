package broker_test

import (
	"testing"

	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// A share has less room than under the former agent, as after a lower --memory-percent: its
// processes have more than that. The memory that they free counts, and the account is right when the
// share has room for all that they have.
func TestMoreThanThereIsRoomFor(t *testing.T) {
	x := newTable(t, broker.Config{GPUs: gpus[:1]})
	x.create(spec{ID: "a", Memory: 5 * gib})
	x.b.Restored("a")
	for i, held := range []uint64{8 * gib, 2 * gib} {
		id := broker.ProcessID(i + 1)
		x.connect(id, "a", 11+i)
		x.send(id, wire.Message{Type: wire.Holds, Bytes: held, Arg: [wire.Args]uint64{held}})
	}
	x.b.Settle(x.now)
	used := func(when string, want uint64) {
		t.Helper()
		if got := x.used("a"); got != want {
			t.Errorf("%s: %d bytes used, want %d", when, got, want)
		}
	}
	free := func(id broker.ProcessID, bytes uint64) { x.send(id, wire.Message{Type: wire.Free, Bytes: bytes}) }
	used("10 of 5 GiB", 5*gib)
	if x.allocate(1, 1) {
		t.Error("a share that has too much has more")
	}
	x.b.Closed(x.now, 2) // it lives, and has its memory
	free(1, 4*gib)
	used("6 of 5 GiB", 5*gib)
	free(1, 4*gib)
	used("2 of 5 GiB", 2*gib)
	x.connect(3, "a", 12)
	x.send(3, wire.Message{Type: wire.Holds, Bytes: 2 * gib, Arg: [wire.Args]uint64{2 * gib}})
	if !x.allocate(3, 3*gib) || x.allocate(1, 1) {
		t.Error("the share has not its 5 GiB")
	}
	free(3, 5*gib)
	used("nothing", 0)
	for _, p := range x.b.Status()[0].Processes {
		if p.Wrong > 0 {
			t.Errorf("process %d: %d messages are wrong", p.PID, p.Wrong)
		}
	}
	free(3, 1)
	if p := x.b.Status()[0].Processes[1]; p.Wrong != 1 {
		t.Errorf("a process frees what it has not: %+v", p)
	}
}

// A share that grows has room for what its processes have already.
func TestGrowthForWhatIsThere(t *testing.T) {
	x := newTable(t, broker.Config{GPUs: gpus[:1]})
	x.create(spec{ID: "a", Memory: 5 * gib})
	x.b.Restored("a")
	x.connect(1, "a", 11)
	x.send(1, wire.Message{Type: wire.Holds, Bytes: 8 * gib, Arg: [wire.Args]uint64{8 * gib}})
	x.b.Settle(x.now)
	if err := x.resize(spec{ID: "a", Memory: 9 * gib}); err != nil {
		t.Fatal(err)
	}
	if got := x.used("a"); got != 8*gib {
		t.Errorf("%d bytes used", got)
	}
	if x.allocate(1, gib+1) || !x.allocate(1, gib) {
		t.Error("the share has not its 9 GiB")
	}
	x.b.Ended(x.now, 1)
	if got := x.used("a"); got != 0 {
		t.Errorf("%d bytes used after the end of the process", got)
	}
}
