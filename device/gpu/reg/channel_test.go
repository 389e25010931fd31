package reg_test

import (
	"bytes"
	"testing"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// FuzzChannel checks that the structures of the compute channel survive a round trip,
// and that short ones are refused.
func FuzzChannel(f *testing.F) {
	f.Add(reg.PacketHeader{Size: 40, Op: reg.PacketNDRange, Flags: 3, Cookie: 1 << 40, Out: 4096, Room: 64, Queue: 9}.Append(nil))
	f.Add(reg.Event{Cookie: 7, Status: -5, Length: 16, Queued: 1, Submitted: 2, Started: 3, Ended: 4, Out: 1 << 20}.Append(nil))
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n, err := reg.ParsePacketHeader(b)
		if (err == nil) != (len(b) >= reg.PacketHeaderSize) || err != nil && h != (reg.PacketHeader{}) {
			t.Fatalf("%d bytes: %v", len(b), err)
		}
		if err == nil && !bytes.Equal(h.Append(nil), b[:n]) {
			t.Errorf("% x became % x", b[:n], h.Append(nil))
		}
		e, n, err := reg.ParseEvent(b)
		if (err == nil) != (len(b) >= reg.EventSize) || err != nil && e != (reg.Event{}) {
			t.Fatalf("%d bytes: %v", len(b), err)
		}
		if err == nil && !bytes.Equal(e.Append(nil)[:56], b[:56]) {
			t.Errorf("% x became % x", b[:n], e.Append(nil))
		}
	})
}
