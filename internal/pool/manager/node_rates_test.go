package manager

import (
	"math"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

func TestRates(t *testing.T) {
	type report struct {
		after          time.Duration
		binding        string
		epoch          uint64
		sent, received uint64
		silent         bool // without counters
		send, receive  uint64
	}
	for name, reports := range map[string][]report{
		"first": {{binding: "b-1", sent: 500, received: 500}},
		"two": {
			{binding: "b-1", sent: 1000, received: 0},
			{after: 500 * time.Millisecond, binding: "b-1", sent: 2000, received: 10, send: 2000, receive: 20},
		},
		"a report without counters between": {
			{binding: "b-1"},
			{after: time.Second, binding: "b-1", silent: true},
			{after: time.Second, binding: "b-1", sent: 100, received: 200, send: 50, receive: 100},
		},
		"the same instant keeps the rate and the interval": {
			{binding: "b-1"},
			{after: time.Second, binding: "b-1", sent: 100, send: 100},
			{binding: "b-1", sent: 150, send: 100},
			{after: time.Second, binding: "b-1", sent: 300, send: 200},
		},
		"backwards": {
			{binding: "b-1", sent: 100, received: 100},
			{after: time.Second, binding: "b-1", sent: 99, received: 101, receive: 1},
		},
		"another epoch begins again": {
			{binding: "b-1", epoch: 1, sent: 100},
			{after: time.Second, binding: "b-1", epoch: 2, sent: 300},
		},
		"another binding begins again and the old one is forgotten": {
			{binding: "b-1", sent: 100},
			{after: time.Second, binding: "b-2", sent: 300},
			{after: time.Second, binding: "b-1", sent: 300},
		},
		"absurd": {
			{binding: "b-1"},
			{after: time.Nanosecond, binding: "b-1", sent: math.MaxUint64, send: math.MaxUint64},
		},
	} {
		t.Run(name, func(t *testing.T) {
			now, r := time.Unix(1, 0), rates(nil)
			for i, in := range reports {
				now = now.Add(in.after)
				// The rates in the report itself do not count.
				c := &dxpuv1.Counters{BytesSent: in.sent, BytesReceived: in.received, SendRate: 7, ReceiveRate: 7}
				b := &dxpuv1.ObservedBinding{BindingId: in.binding, Epoch: in.epoch, Counters: c}
				if in.silent {
					b.Counters = nil
				}
				r.update(&dxpuv1.ObservedState{Slots: []*dxpuv1.ObservedSlot{{Slot: 1}, {Binding: b}}}, now)
				if !in.silent && (c.SendRate != in.send || c.ReceiveRate != in.receive) {
					t.Errorf("report %d: send %d, receive %d, want %d and %d", i, c.SendRate, c.ReceiveRate, in.send, in.receive)
				}
			}
			if len(r) != 1 {
				t.Errorf("%d bindings are kept, want 1", len(r))
			}
		})
	}
}
