package virtio_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/virtio/virtiotest"
)

// A host that answers after the Completion Timeout makes the device fail, unless its answers
// are known to be under way.
func TestSlack(t *testing.T) {
	for _, slack := range []time.Duration{0, 5 * time.Second} {
		h, d, _ := start(t)
		h.dev.SetSlack(func(_, timeout time.Duration) time.Duration {
			if timeout != 10*time.Second {
				t.Errorf("a timeout of %v", timeout)
			}
			return slack
		})
		_, at := d.Alloc(64)
		d.Queues[0].Submit(0, virtiotest.Buffer{Addr: at, Len: 8}, virtiotest.Buffer{Addr: at, Len: 8, Write: true})
		h.Latency = 12 * time.Second
		h.Run(200 * time.Second)
		if _, _, ok := d.Queues[0].Used(); ok != (slack > 0) || (h.dev.Broken() == "") != ok {
			t.Errorf("with a slack of %v: done %v, %q", slack, ok, h.dev.Broken())
		}
	}
}
