package vfioserver

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// A read of the server fails at the Completion Timeout, unless the answer is known to be
// under way.
func TestSlack(t *testing.T) {
	var dma dmaState
	var failures int
	dma.init(func(_ *vfiouser.DMARequest, err error) {
		if err != nil {
			failures++
		}
	}, device.NetworkLimits())
	dma.add(&vfiouser.DMARequest{Addr: 0x1000, Data: make([]byte, 64)})
	dma.transmit(0, true, func(*tlp.Packet) bool { return true })
	slack := 5 * time.Second
	judge := func(o transaction.Overdue) time.Duration {
		if o.Deadline != completionTimeout || o.Timeout != completionTimeout {
			t.Errorf("%+v", o)
		}
		return slack
	}
	if dma.expire(completionTimeout+slack-1, judge); failures > 0 {
		t.Error("the read has failed before its time was over")
	}
	if dma.expire(completionTimeout+slack, judge); failures != 1 {
		t.Error("the read has not failed")
	}
}

// A function that may not master the bus any more asks for no more of a long read. The read
// ends when the answers to what it has asked for have come, or at once.
func TestReadsEndWithBusMastering(t *testing.T) {
	var dma dmaState
	failed := map[uint64]bool{}
	dma.init(func(r *vfiouser.DMARequest, err error) { failed[r.Addr] = errors.Is(err, unix.ENODEV) }, device.NetworkLimits())
	dma.add(&vfiouser.DMARequest{Addr: 0x10000, Data: make([]byte, 3*pcie.PageSize)})
	var asked []tlp.Packet
	dma.transmit(0, true, func(p *tlp.Packet) bool {
		asked = append(asked, *p)
		return len(asked) < 2
	})
	dma.add(&vfiouser.DMARequest{Addr: 0x20000, Data: make([]byte, 64)})
	for range 2 {
		dma.transmit(0, false, func(p *tlp.Packet) bool {
			asked = append(asked, *p)
			return true
		})
	}
	if len(asked) != 3 || asked[2].Addr != asked[1].Addr {
		t.Errorf("%d requests, want the first, and the second twice: %v", len(asked), asked)
	}
	if _, ended := failed[0x10000]; !failed[0x20000] || ended {
		t.Errorf("the read without requests has ended with ENODEV: %v; the one with requests has ended: %v", failed[0x20000], ended)
	}
	for i := range 2 {
		answer := tlp.Packet{Type: tlp.CplD, Tag: asked[i].Tag, ByteCount: pcie.PageSize, Length: pcie.PageSize / pcie.DW, Data: make([]byte, pcie.PageSize)}
		dma.complete(&answer)
	}
	if !failed[0x10000] || dma.open() {
		t.Error("the read has not ended with ENODEV after its answers")
	}
}

// A read whose last request has its tag, but has not been taken yet, has none to send.
func TestAReadThatIsAskedForGoesOn(t *testing.T) {
	var dma dmaState
	ended := false
	dma.init(func(_ *vfiouser.DMARequest, err error) {
		if ended = true; err != nil {
			t.Errorf("the read has failed: %v", err)
		}
	}, device.NetworkLimits())
	dma.add(&vfiouser.DMARequest{Addr: 0x10000, Data: make([]byte, 64)})
	dma.transmit(0, true, func(*tlp.Packet) bool { return false })
	var asked tlp.Packet
	dma.transmit(0, false, func(p *tlp.Packet) bool {
		asked = *p
		return true
	})
	dma.complete(&tlp.Packet{Type: tlp.CplD, Tag: asked.Tag, ByteCount: 64, Length: 64 / pcie.DW, Data: make([]byte, 64)})
	if !ended || dma.open() {
		t.Error("the read has not ended after its answer")
	}
}
