package gate

import (
	"testing"

	"github.com/dxpu-project/dxpu/share"
)

// A permit leaves the other launches of the queue where they are, so that a share with thousands
// of them costs no more than others.
func TestPermitMovesNoLaunches(t *testing.T) {
	g, err := New(share.A100, "timeslice")
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Join(0, 1, share.ClientSpec{}); err != nil {
		t.Fatal(err)
	}
	const processes = 4
	for p := range ProcessID(processes) {
		if err := g.Enter(0, 1, p); err != nil {
			t.Fatal(err)
		}
		for i := range uint64(MaxWaiting) {
			if !g.Launch(0, p, Launch{ID: i}) {
				t.Fatal("a launch was refused")
			}
		}
	}
	c := g.find(1)
	for len(c.queue) > 1 {
		second := &c.queue[1]
		before := len(c.queue)
		g.permit(c)
		if len(c.queue) != before-1 || &c.queue[0] != second {
			t.Fatalf("a permit moved %d launches", before-1)
		}
	}
	g.Launch(0, 0, Launch{ID: MaxWaiting})
	if n := cap(c.queue); n > 2*processes*MaxWaiting {
		t.Errorf("room for %d launches", n)
	}
}
