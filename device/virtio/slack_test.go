package virtio_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/virtio"
	"github.com/dxpu-project/dxpu/device/virtio/virtiotest"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
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

// A reset of the function changes the number of tags. The tags of the reads before it stay out
// of use while their completions may come.
func TestTagsAfterReset(t *testing.T) {
	h, d, e := start(t)
	h.settle()
	at := cfgspace.Find(h.ReadConfigSpace(), cfgspace.CapExpress) + 8
	control := h.ConfigRead(at, 2)
	h.ConfigWrite(at, 2, control&^(1<<8)) // 5 bits for a tag
	open := map[pcie.Tag]bool{}
	h.OnRead = func(p *tlp.Packet) (pcie.CplStatus, time.Duration, bool) {
		if open[p.Tag] {
			t.Errorf("tag %d is used while a completion for it may come", p.Tag)
		}
		open[p.Tag] = true
		return pcie.SuccessfulCompletion, time.Second / 2, true
	}
	submit := func() {
		t.Helper()
		before := len(open)
		_, buffer := d.Alloc(8)
		d.Queues[0].Submit(0, virtiotest.Buffer{Addr: buffer, Len: 8, Write: true})
		h.Run(time.Millisecond)
		if len(open) == before {
			t.Fatal("the device reads nothing")
		}
	}
	submit()
	h.ConfigWrite(at, 2, control|1<<15)
	h.bars = h.Enumerate()
	if err := d.Start(virtio.FeatureVersion1, 16); err != nil {
		t.Fatal(err)
	}
	h.dev.SetBackend(e)
	submit()
}
