package broker_test

import (
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
	"github.com/dxpu-project/dxpu/share"
)

// uneven is a share with 30 % of the first GPU and 60 % of the second one.
func uneven() broker.Spec {
	return broker.Spec{ID: "s", Parts: []broker.Part{
		{GPU: 0, Memory: 1000, Compute: share.Percent(30), Limit: share.Percent(30)},
		{GPU: 1, Memory: 3000, Compute: share.Percent(60), Limit: share.Percent(60)},
	}}
}

func newUneven(t *testing.T) *table {
	x := newTable(t, broker.Config{})
	if err := x.b.Create(0, uneven()); err != nil {
		t.Fatal(err)
	}
	return x
}

// greet connects a process that tells of its contexts.
func (x *table) greet(id broker.ProcessID, pid int) {
	x.t.Helper()
	if err := x.b.Connect(x.now, id, "s", pid); err != nil {
		x.t.Fatal(err)
	}
	x.send(id, wire.Message{Type: wire.Hello, ID: wire.Version, Arg: [wire.Args]uint64{0, wire.Tells}})
	if m := x.last(id); m.Type != wire.Welcome || m.Arg[1] != wire.Tells {
		x.t.Fatalf("answer %+v", m)
	}
}

func (x *table) take(id broker.ProcessID, gpu uint32, bytes uint64) bool {
	x.t.Helper()
	x.send(id, wire.Message{Type: wire.Allocate, GPU: gpu, Bytes: bytes})
	return x.last(id).Type == wire.Granted
}

func (x *table) entry(gpu int) wire.GPU {
	x.t.Helper()
	p, ok := x.b.Page("s")
	if !ok || len(p.GPUs) <= gpu {
		x.t.Fatalf("no GPU %d in the page %+v", gpu, p)
	}
	return p.GPUs[gpu]
}

// The parts of a share have limits of their own.
func TestUnequalParts(t *testing.T) {
	x := newUneven(t)
	x.greet(1, 11)
	for gpu, limit := range []uint64{1000, 3000} {
		if !x.take(1, uint32(gpu), limit) || x.take(1, uint32(gpu), 1) {
			t.Errorf("GPU %d: the limit of %d bytes does not hold", gpu, limit)
		}
		if g := x.entry(gpu); g.Limit != limit || g.Used != limit || g.Compute != uint32(300_000*(gpu+1)) || g.UUID != gpus[gpu].UUID {
			t.Errorf("GPU %d: %+v", gpu, g)
		}
	}
	if _, compute := x.b.Left(1); compute != share.Percent(40) {
		t.Errorf("%d ppm left of the second GPU", compute)
	}
	p := uneven().Parts[0]
	p.Memory = 2000
	if err := x.b.Resize(0, "s", p); err != nil || x.entry(0).Limit != 2000 || x.entry(1).Limit != 3000 {
		t.Errorf("%v, page %+v %+v", err, x.entry(0), x.entry(1))
	}
	x.create(spec{ID: "o", Memory: 1, Compute: share.Percent(40), GPUs: []int{1}})
	q := uneven().Parts[1]
	p.Memory, q.Compute, q.Limit = 1500, share.Percent(61), share.Percent(61)
	if err := x.b.Resize(0, "s", p, q); err == nil || x.entry(0).Limit != 2000 {
		t.Errorf("half of a change: %v, page %+v", err, x.entry(0))
	}
	x.b.Ended(0, 1)
	if s := x.b.Status()[0]; s.Used != 0 || s.Parts[0].Kept != 2000 || s.Parts[1].Kept != 3000 {
		t.Errorf("left behind: %+v", s)
	}
}

// The room of a resize to come is kept, and no process has it before.
func TestPromise(t *testing.T) {
	x := newTable(t, broker.Config{GPUs: gpus[:1]})
	x.create(spec{ID: "a", Memory: gib})
	x.connect(1, "a", 11)
	whole := gpus[0].Device.Memory
	part := func(memory int64) broker.Part { return broker.Part{Memory: memory} }
	if grows, err := x.b.Promise("a", part(gib)); grows || err != nil {
		t.Errorf("the same size grows: %v, %v", grows, err)
	}
	if _, err := x.b.Promise("a", part(whole+1)); err == nil {
		t.Error("more than the GPU has is promised")
	}
	if grows, err := x.b.Promise("a", part(whole)); !grows || err != nil {
		t.Fatal(grows, err)
	}
	if x.allocate(1, gib+1) {
		t.Error("a process has memory that is only promised")
	}
	if p, _ := x.b.Page("a"); p.GPUs[0].Limit != gib {
		t.Errorf("page %+v", p)
	}
	if kept := x.b.Status()[0].Parts[0].Kept; kept != whole {
		t.Errorf("%d bytes are kept, want %d", kept, whole)
	}
	if err := x.b.Create(0, spec{ID: "b", Memory: 1, GPUs: []int{0}}.of(0)); err == nil {
		t.Error("another share has the room that is promised")
	}
	if err := x.b.Resize(0, "a", part(whole-1)); err != nil {
		t.Error(err)
	}
	if left, _ := x.b.Left(0); left != 1 {
		t.Errorf("%d bytes left after the resize", left)
	}
	if _, err := x.b.Promise("a", part(whole)); err != nil {
		t.Error(err)
	}
	x.b.Withhold("a")
	if left, _ := x.b.Left(0); left != 1 {
		t.Errorf("%d bytes left after a promise that was withheld", left)
	}
}

// A GPU that leaves a share takes the processes along that used it, and no others.
func TestDrop(t *testing.T) {
	x := newUneven(t)
	x.greet(1, 11)
	x.greet(2, 12)
	x.send(1, wire.Message{Type: wire.Context, GPU: 0})
	if !x.take(2, 1, 100) {
		t.Fatal("refused")
	}
	if err := x.b.Drop(x.now, "s", 0, time.Second); err != nil {
		t.Fatal(err)
	}
	x.flush()
	if m := x.last(1); m.Type != wire.End || len(x.got[2]) != 0 || x.entry(0).Limit != 0 || x.entry(1).Limit != 3000 {
		t.Errorf("answer %+v, the other got %v; page %+v", m, x.got[2], x.entry(0))
	}
	if err := x.b.Add(x.now, "s", uneven().Parts[0]); err == nil {
		t.Error("the GPU comes back before it has left")
	}
	if memory, _ := x.b.Left(0); memory != 16*gib-1000 {
		t.Errorf("%d bytes left while a process may use the GPU", memory)
	}
	x.now += time.Second
	x.flush()
	if !slices.Equal(x.killed, []broker.ProcessID{1}) {
		t.Errorf("killed %v", x.killed)
	}
	x.b.Ended(x.now, 1)
	x.flush()
	if memory, _ := x.b.Left(0); memory != 16*gib || len(x.dropped) != 1 || x.dropped[0] != (broker.Dropped{ID: "s", GPU: 0}) {
		t.Errorf("%d bytes left, dropped %v", memory, x.dropped)
	}
	if g := x.entry(0); g.Limit != 0 || g.Gate != wire.Held || g.UUID != gpus[0].UUID {
		t.Errorf("page %+v", g)
	}
	if !x.take(2, 1, 100) || x.take(2, 0, 1) {
		t.Error("the process that goes on has not the GPU that is left, or the other one")
	}
	x.send(2, wire.Message{Type: wire.Launch, GPU: 0, ID: 9})
	if m := x.last(2); m.Type != wire.Reject {
		t.Errorf("a launch on a GPU that has left: %+v", m)
	}

	if err := x.b.Add(x.now, "s", uneven().Parts[0]); err != nil {
		t.Fatal(err)
	}
	x.greet(3, 13)
	if x.entry(0).Limit != 1000 || !x.take(3, 0, 1000) {
		t.Errorf("page %+v", x.entry(0))
	}
	for _, gpu := range []int{1, 0} {
		if err := x.b.Drop(x.now, "s", gpu, 0); err != nil {
			t.Fatal(err)
		}
	}
	x.b.Ended(x.now, 2)
	x.b.Ended(x.now, 3)
	x.flush()
	if !slices.Equal(x.gone, []string{"s"}) {
		t.Errorf("ended %v", x.gone)
	}
}

// A GPU that leaves a share of a former agent waits for the programs that may use it.
func TestDropAfterARestart(t *testing.T) {
	x := newUneven(t)
	x.b.Restored("s")
	if err := x.b.Drop(x.now, "s", 0, time.Second); err != nil {
		t.Fatal(err)
	}
	x.flush()
	x.greet(1, 11)
	x.greet(2, 12)
	x.send(1, wire.Message{Type: wire.Context, GPU: 0})
	x.send(2, wire.Message{Type: wire.Context, GPU: 1})
	if m := x.last(1); m.Type != wire.End || len(x.got[2]) > 0 || len(x.dropped) > 0 {
		t.Errorf("answer %+v, the other got %v; dropped %v", m, x.got[2], x.dropped)
	}
	x.b.Ended(x.now, 1)
	x.flush()
	if len(x.dropped) > 0 {
		t.Error("the GPU has left before all programs could come back")
	}
	x.b.Settle(x.now)
	x.flush()
	if len(x.dropped) != 1 {
		t.Error("the GPU has not left")
	}
}

// A library that does not tell of its contexts may have them on all GPUs of its share.
func TestDropWithAnOldLibrary(t *testing.T) {
	x := newUneven(t)
	x.connect(1, "s", 11)
	if err := x.b.Drop(x.now, "s", 1, time.Second); err != nil {
		t.Fatal(err)
	}
	x.flush()
	if m := x.last(1); m.Type != wire.End {
		t.Errorf("answer %+v", m)
	}
	x.b.Ended(x.now, 1)
	x.connect(2, "s", 12)
	x.flush()
	if len(x.got[2]) != 0 || len(x.dropped) != 1 {
		t.Errorf("a later process got %v; dropped %v", x.got[2], x.dropped)
	}
}

// A process that comes back with a GPU that its share has lost is to end.
func TestContextOnALostGPU(t *testing.T) {
	x := newUneven(t)
	if err := x.b.Drop(x.now, "s", 0, 0); err != nil {
		t.Fatal(err)
	}
	for id, m := range map[broker.ProcessID]wire.Message{1: {Type: wire.Context}, 2: {Type: wire.Holds, Bytes: 10}} {
		x.greet(id, int(10+id))
		x.send(id, m)
		if got := x.last(id); got.Type != wire.End {
			t.Errorf("%v: answer %+v", m.Type, got)
		}
	}
	if memory, _ := x.b.Left(0); memory != 16*gib {
		t.Errorf("%d bytes left", memory)
	}
}

// A GPU out of service ends the processes that used it. The share goes on with its others.
func TestStopOneOfTwo(t *testing.T) {
	x := newUneven(t)
	x.greet(1, 11)
	x.greet(2, 12)
	x.send(1, wire.Message{Type: wire.Context, GPU: 0})
	x.send(2, wire.Message{Type: wire.Context, GPU: 1})
	x.b.Stop(x.now, 0, "broken", time.Second)
	x.flush()
	if m := x.last(1); m.Type != wire.End || len(x.got[2]) != 0 || x.entry(0).Limit != 0 || !x.b.Busy(0) {
		t.Errorf("answer %+v, the other got %v; page %+v", m, x.got[2], x.entry(0))
	}
	x.b.Ended(x.now, 1)
	if x.b.Busy(0) || !x.b.Busy(1) {
		t.Error("the GPU waits for its reset, or the other one for none")
	}
	x.greet(3, 13)
	x.b.Stop(x.now, 1, "broken, too", time.Second)
	if err := x.b.Connect(x.now, 4, "s", 14); err == nil {
		t.Error("a process begins without any GPU")
	}
	x.b.Start(0)
	x.flush()
	if x.entry(0).Limit != 1000 || !slices.Contains(x.pages, "s") {
		t.Errorf("page %+v", x.entry(0))
	}
}

// A share that gets a GPU while processes are there has it for them, too.
func TestAdd(t *testing.T) {
	x := newTable(t, broker.Config{})
	x.create(spec{ID: "s", Memory: 1000})
	x.greet(1, 11)
	p := uneven().Parts[1]
	p.Memory = 17 * gib
	if err := x.b.Add(x.now, "s", p); err == nil {
		t.Error("more memory than the GPU has")
	}
	if err := x.b.Add(x.now, "s", uneven().Parts[1]); err != nil {
		t.Fatal(err)
	}
	if !x.take(1, 1, 3000) || x.take(1, 1, 1) {
		t.Error("the limit does not hold")
	}
	x.send(1, wire.Message{Type: wire.Launch, GPU: 1, ID: 5})
	x.now += time.Second
	x.flush()
	if m := x.last(1); m.Type != wire.Permit || m.GPU != 1 {
		t.Errorf("answer %+v", m)
	}
}
