package vfioserver_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// A host that asks and takes no completions fills no queue: the device refuses
// its requests, and takes them again after it has answered.
func TestMuteHostIsRefused(t *testing.T) {
	for _, c := range []struct {
		name    string
		request func(tag pcie.Tag) *tlp.Packet
	}{
		{"a register of the box", func(tag pcie.Tag) *tlp.Packet {
			return &tlp.Packet{Type: tlp.CfgRd0, Length: 1, Target: 0x100, Register: cfgspace.OffBAR0, FirstBE: 0xf, Tag: tag}
		}},
		{"a register of the server", func(tag pcie.Tag) *tlp.Packet {
			return &tlp.Packet{Type: tlp.CfgRd0, Length: 1, Target: 0x100, FirstBE: 0xf, Tag: tag}
		}},
		{"no address of the device", func(tag pcie.Tag) *tlp.Packet {
			p := &tlp.Packet{Type: tlp.MRd, Tag: tag}
			p.SetMemory(1<<40, pcie.MaxPayload)
			return p
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newTLPHost(t, newToy(t, nil))
			h.closed, h.replies = true, nil
			const most = 2 * pcie.MaxTags
			taken := 0
			h.until("as many requests as may wait", func() bool { // fewer while the server is slow
				for taken <= 4*most && h.dev.Receive(h.now(), c.request(pcie.Tag(taken%pcie.MaxTags))) {
					h.dev.Transmit(h.now(), h.take)
					taken++
				}
				return taken >= most
			})
			if taken != most {
				t.Errorf("the device took %d requests, want %d", taken, most)
			}
			h.closed = false
			h.until("the completions", func() bool { return len(h.replies) == taken })
			if !h.dev.Receive(h.now(), c.request(0)) {
				t.Error("the device takes no request after it has answered all")
			}
		})
	}
}

// A server that takes no writes makes the device refuse them, so that its
// neighbours and its host wait instead of the box's memory growing.
func TestWritesIntoBusyServerAreRefused(t *testing.T) {
	gate := make(chan struct{})
	d := newToy(t, func(d *toy) { d.gate = gate })
	h := newTLPHost(t, d)
	const size, most = 2048, 1 << 20
	p := tlp.Packet{Type: tlp.MWr, Data: make([]byte, size)}
	p.SetMemory(barBase+toyScratch, size)
	sent := 0
	for sent <= 2*most && h.dev.Receive(h.now(), &p) {
		sent += size
	}
	if sent > most {
		t.Errorf("the device took %d KiB that the server did not", sent>>10)
	}
	close(gate)
	h.until("room for another write", func() bool { return h.dev.Receive(h.now(), &p) })
}

// A host does not wait for a server that takes none of its writes: the device
// fails with the reason, and the box closes the binding.
func TestStalledServerFails(t *testing.T) {
	gate := make(chan struct{})
	d := newToy(t, func(d *toy) { d.gate = gate })
	h := newTLPHost(t, d)
	defer close(gate)
	const size = 2048
	p := tlp.Packet{Type: tlp.MWr, Data: make([]byte, size)}
	p.SetMemory(barBase+toyScratch, size)
	for h.dev.Receive(h.now(), &p) {
	}
	full := h.now()
	if due := h.dev.Wake(); due > full+time.Second {
		t.Errorf("wakes at %v, want within a second from %v", due, full)
	}
	// Three seconds without progress; the socket may take more in the first looks.
	looks, ok, why := 0, true, ""
	for ; ok && looks < 24; looks++ {
		for h.dev.Receive(full, &p) {
		}
		full = max(full, h.dev.Wake())
		h.dev.Transmit(full, h.take)
		ok, why = h.dev.Check()
	}
	if ok || looks < 12 || !strings.Contains(why, "too slow") {
		t.Errorf("after %d looks: works: %v (%s), want that it is too slow after 12", looks, ok, why)
	}
	if !h.dev.Receive(full, &p) {
		t.Error("a device that has failed keeps its host waiting")
	}
}
