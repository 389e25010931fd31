package broker_test

import (
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// A process with several GPUs that was stopped goes on at all of them with its first message: the
// thread that waits for a permit on another GPU sends none.
func TestStoppedProcessOfTwoGPUs(t *testing.T) {
	x := newTable(t, broker.Config{Policy: "timeslice"})
	x.create(spec{ID: "both", Memory: gib, GPUs: []int{0, 1}})
	x.create(spec{ID: "other", Memory: gib, GPUs: []int{1}})
	x.connect(1, "both", 11)
	x.connect(2, "other", 12)
	args := [wire.Args]uint64{80, 256, 1}
	x.send(1, wire.Message{Type: wire.Launch, GPU: 0, ID: 5, Arg: args})
	x.send(2, wire.Message{Type: wire.Launch, GPU: 0, ID: 7, Arg: args}) // on its only GPU, which is GPU 1
	x.send(1, wire.Message{Type: wire.Launch, GPU: 1, ID: 6, Arg: args})
	x.now += 1500 * time.Millisecond
	if late := x.b.Late(x.now, time.Second); !slices.Contains(late, 1) {
		t.Fatalf("late: %v", late)
	}
	x.b.Stall(x.now, 1)
	x.flush()
	x.got[1] = nil
	x.send(1, wire.Message{Type: wire.Done, GPU: 0, ID: 5, Arg: [wire.Args]uint64{1000}})
	x.send(2, wire.Message{Type: wire.Done, GPU: 0, ID: 7, Arg: [wire.Args]uint64{1000}})
	x.send(2, wire.Message{Type: wire.Idle})
	for range 100 {
		x.now += 100 * time.Millisecond
		x.flush()
	}
	if !slices.ContainsFunc(x.got[1], func(m wire.Message) bool { return m.Type == wire.Permit && m.ID == 6 }) {
		t.Errorf("the launch that waits has no permit: %v", x.got[1])
	}
}
