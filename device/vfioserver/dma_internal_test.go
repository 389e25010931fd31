package vfioserver

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
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
	dma.transmit(0, func(*tlp.Packet) bool { return true })
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
