package virtio_test

import (
	"testing"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/virtio/virtiotest"
)

// A driver without a BAR reaches the registers by configuration requests (section 4.1.4.9).
func TestConfigurationAccess(t *testing.T) {
	h := newHost(t)
	h.ConfigWrite(cfgspace.OffCommand, 2, 0) // no BAR answers
	at := 0
	dump := h.ReadConfigSpace()
	for id, off := range cfgspace.Capabilities(dump) {
		if id == cfgspace.CapVendor && dump[off+3] == 5 {
			at = off
		}
	}
	if at == 0 || dump[at+2] != 20 {
		t.Fatalf("no capability, or of another length, at %#x", at)
	}
	show := func(bar, off, n uint32) {
		h.ConfigWrite(at+4, 1, bar)
		h.ConfigWrite(at+8, 4, off)
		h.ConfigWrite(at+12, 4, n)
	}
	show(0, 18, 2)
	if n := h.ConfigRead(at+16, 2); n != 2 {
		t.Errorf("%d virtqueues, want 2", n)
	}
	show(0, virtiotest.DeviceConfig, 4)
	if n := h.ConfigRead(at+16, 4); n != 2048 {
		t.Errorf("capacity %d, want 2048", n)
	}
	status := func() uint32 {
		show(0, virtiotest.Status, 1)
		return h.ConfigRead(at+16, 1)
	}
	show(0, virtiotest.Status, 1)
	h.ConfigWrite(at+16, 1, 3)
	if s := status(); s != 3 {
		t.Errorf("status %#x, want 3", s)
	}
	for _, bad := range [][3]uint32{{1, virtiotest.Status, 1}, {2, virtiotest.Status, 1}, {0, virtiotest.Status, 0}, {0, virtiotest.Status, 3}, {0, 18, 4}, {0, 1<<32 - 4, 4}, {0, 0x4000, 1}} {
		show(bad[0], bad[1], bad[2])
		h.ConfigWrite(at+16, 4, 0)
		if v := h.ConfigRead(at+16, 4); v != 0 {
			t.Errorf("window %v shows %#x", bad, v)
		}
		if s := status(); s != 3 {
			t.Errorf("status %#x after a write to window %v", s, bad)
		}
	}
	show(0, 16, 4) // a vector and the number of virtqueues; the write is of one byte
	h.ConfigWrite(at+16, 1, 1)
	if v := h.ConfigRead(at+16, 4); v != 2<<16|0xffff {
		t.Errorf("a part of the data was written: %#x", v)
	}
}
