package hostproxy

import (
	"context"
	"runtime"
	"testing"
)

// A device that is taken away leaves the sockets of those before it open, up to the limit
// of the slot, and a VMM that disconnects makes room.
func TestPartingDevices(t *testing.T) {
	var d parting
	ended := make(chan int, 2*partingLimit)
	parts := func(slot, i int) {
		d.add(slot, func(ctx context.Context) {
			<-ctx.Done()
			ended <- i
		})
	}
	for i := range partingLimit {
		parts(3, i)
	}
	parts(4, 90)
	select {
	case i := <-ended:
		t.Errorf("device %d is disconnected below the limit", i)
	default:
	}
	parts(3, partingLimit)
	if i := <-ended; i != 0 {
		t.Errorf("device %d is disconnected, want the oldest", i)
	}
	d.add(5, func(context.Context) {})
	for gone := false; !gone; runtime.Gosched() {
		d.mu.Lock()
		gone = len(d.devices[5]) == 0
		d.mu.Unlock()
	}
	d.stop()
	if n := len(ended); n != partingLimit+1 {
		t.Errorf("%d devices are disconnected at the end, want %d", n, partingLimit+1)
	}
}
