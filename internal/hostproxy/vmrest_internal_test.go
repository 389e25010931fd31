package hostproxy

import (
	"slices"
	"testing"

	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// requestsOf keeps the TLPs for a device.
type requestsOf []tlp.Packet

func (*requestsOf) Watching() bool { return true }

func (s *requestsOf) TLP(_ *engine.Binding, received bool, p *tlp.Packet) {
	if !received {
		kept := *p
		kept.Data = slices.Clone(p.Data)
		*s = append(*s, kept)
	}
}

// After the end of a VMM a device without a reset of its own loses the right to master the
// bus. It reaches the next VMM when it has answered that, or after a reset of that VMM, and not
// before.
func TestDeviceRestsBetweenVMMs(t *testing.T) {
	var sent requestsOf
	e, s, _ := newSuccession(t, engine.Config{Watcher: &sent})
	s.next, s.host.table = nil, mapping.NewHostTable(1)
	v := newVMOf(s)
	v.conn = new(vfiouser.Conn)
	if v.admit(e); v.bus != v.conn || len(sent) > 0 {
		t.Fatal("the device does not reach the first VMM")
	}
	for _, answered := range []bool{true, false} {
		sent = nil
		v.conn, v.bus = nil, nil
		v.rest(e)
		v.conn = new(vfiouser.Conn)
		if v.admit(e); v.bus != nil {
			t.Error("the device reaches the next VMM at once")
		}
		if len(sent) != 1 || sent[0].Type != tlp.CfgWr0 || sent[0].Register != 4 || sent[0].FirstBE != 3 || !slices.Equal(sent[0].Data, make([]byte, 4)) {
			t.Fatalf("sent %+v", sent)
		}
		if answered {
			var done tlp.Packet
			transaction.Respond(&done, &sent[0], s.id(), pcie.SuccessfulCompletion)
			if v.root.complete(e, &done); v.bus != v.conn {
				t.Error("the device does not reach the next VMM")
			}
			continue
		}
		v.root.cancel(e)
		if v.admit(e); v.bus != nil || v.resting {
			t.Error("the device reaches a VMM after a reset without an answer")
		}
		if v.rested(e, true, pcie.SuccessfulCompletion); v.bus != v.conn {
			t.Error("the device does not reach the VMM after a reset of its own")
		}
	}
}

func newVMOf(s *slot) *vm {
	return &vm{slot: s, root: s.root, device: new(remote)}
}
