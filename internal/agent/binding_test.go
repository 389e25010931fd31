package agent

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/link"
)

func wantedBinding() *dxpuv1.DesiredBinding {
	return &dxpuv1.DesiredBinding{
		BindingId: "b", Epoch: 3, Slot: 1, Cipher: dxpuv1.Cipher_CIPHER_AES_256_GCM, Secret: bytes.Repeat([]byte{1}, 32), Mtu: 9000,
		Peer: &dxpuv1.Peer{NodeNumber: 9, Slot: 4, Addresses: []*dxpuv1.PathAddress{
			{Path: 1, Address: "192.0.2.2:4791"}, {Path: 0, Address: "192.0.2.1:4791"},
		}},
	}
}

// Both sides of a binding have matching configurations.
func TestLinkConfig(t *testing.T) {
	host, peers, err := LinkConfig(wantedBinding(), 7, dxpuv1.NodeKind_NODE_KIND_HOST)
	if err != nil {
		t.Fatal(err)
	}
	if len(peers) != 2 || peers[0].String() != "192.0.2.1:4791" || peers[1].String() != "192.0.2.2:4791" {
		t.Errorf("peers %v", peers)
	}
	other := wantedBinding()
	other.Slot, other.Peer.Slot, other.Peer.NodeNumber = 4, 1, 7
	box, _, err := LinkConfig(other, 9, dxpuv1.NodeKind_NODE_KIND_BOX)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case host.Binding != box.Binding || host.Binding != 9<<8|4:
		t.Errorf("bindings %#x and %#x", host.Binding, box.Binding)
	case host.Local != box.Remote || host.Remote != box.Local:
		t.Errorf("ends %v-%v and %v-%v", host.Local, host.Remote, box.Local, box.Remote)
	case !host.Initiator || box.Initiator:
		t.Error("the host opens the session, and only the host")
	case host.Session == 0 || host.Session == box.Session:
		t.Error("both sides have the same session number")
	case len(host.Paths) != 2 || host.Paths[0].MTU != 9000:
		t.Errorf("paths %+v", host.Paths)
	}
	again, _, _ := LinkConfig(wantedBinding(), 7, dxpuv1.NodeKind_NODE_KIND_HOST)
	if again.Session == host.Session {
		t.Error("two configurations have the same session number")
	}
}

// Session numbers do not predict the next one: each bit is set in half of them, and
// in half of the differences between consecutive ones.
func TestSessionNumbersAreNotGuessable(t *testing.T) {
	const n = 2000
	var set, changed [64]int
	seen := map[uint64]bool{}
	var last uint64
	for range n {
		cfg, _, err := LinkConfig(wantedBinding(), 7, dxpuv1.NodeKind_NODE_KIND_HOST)
		if err != nil {
			t.Fatal(err)
		}
		if seen[cfg.Session] {
			t.Fatalf("session number %#x appears twice", cfg.Session)
		}
		seen[cfg.Session] = true
		for bit := range set {
			set[bit] += int(cfg.Session >> bit & 1)
			changed[bit] += int((cfg.Session - last) >> bit & 1)
		}
		last = cfg.Session
	}
	// Ten standard deviations, sqrt(n)/2 each.
	const least, most = n/2 - 224, n/2 + 224
	for bit := range set {
		if set[bit] < least || set[bit] > most || changed[bit] < least || changed[bit] > most {
			t.Errorf("bit %d is set in %d of %d numbers and %d differences", bit, set[bit], n, changed[bit])
		}
	}
}

func TestLinkConfigRefuses(t *testing.T) {
	for _, c := range []struct {
		name, want string
		change     func(b *dxpuv1.DesiredBinding)
	}{
		{"slot", "slots", func(b *dxpuv1.DesiredBinding) { b.Slot = 256 }},
		{"slot of the peer", "slots", func(b *dxpuv1.DesiredBinding) { b.Peer.Slot = 256 }},
		{"no epoch", "epoch 0", func(b *dxpuv1.DesiredBinding) { b.Epoch = 0 }},
		{"large epoch", "epoch", func(b *dxpuv1.DesiredBinding) { b.Epoch = 1 << 32 }},
		{"large box", "23 bits", func(b *dxpuv1.DesiredBinding) { b.Peer.NodeNumber = 1 << 23 }},
		{"short secret", "31 bytes", func(b *dxpuv1.DesiredBinding) { b.Secret = b.Secret[:31] }},
		{"long secret", "33 bytes", func(b *dxpuv1.DesiredBinding) { b.Secret = append(b.Secret, 0) }},
		{"unknown cipher", "cipher", func(b *dxpuv1.DesiredBinding) { b.Cipher = 99 }},
		{"no cipher given", "cipher", func(b *dxpuv1.DesiredBinding) { b.Cipher = 0 }},
		{"no peer", "0 paths", func(b *dxpuv1.DesiredBinding) { b.Peer = nil }},
		{"no address", "0 paths", func(b *dxpuv1.DesiredBinding) { b.Peer.Addresses = nil }},
		{"bad address", "address of path 1", func(b *dxpuv1.DesiredBinding) { b.Peer.Addresses[0].Address = "here" }},
		{"a path twice", "without gaps", func(b *dxpuv1.DesiredBinding) { b.Peer.Addresses[0].Path = 0 }},
		{"a gap", "without gaps", func(b *dxpuv1.DesiredBinding) { b.Peer.Addresses[0].Path = 2 }},
		{"too many paths", "paths", func(b *dxpuv1.DesiredBinding) {
			b.Peer.Addresses = make([]*dxpuv1.PathAddress, frame.MaxPaths+1)
		}},
	} {
		b := proto.CloneOf(wantedBinding())
		c.change(b)
		cfg, peers, err := LinkConfig(b, 7, dxpuv1.NodeKind_NODE_KIND_HOST)
		if err == nil || !strings.Contains(err.Error(), c.want) || peers != nil || cfg.Binding != 0 {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	b := wantedBinding()
	b.Mtu = 0
	if cfg, _, err := LinkConfig(b, 7, dxpuv1.NodeKind_NODE_KIND_HOST); err != nil || cfg.Paths[0].MTU != frame.MinMTU {
		t.Errorf("without an MTU: %v", err)
	}
	b.Mtu = 1 << 30
	if cfg, _, err := LinkConfig(b, 7, dxpuv1.NodeKind_NODE_KIND_HOST); err != nil || cfg.Paths[0].MTU != frame.MaxDatagram {
		t.Errorf("with a huge MTU: %v", err)
	}
}

func TestStatus(t *testing.T) {
	s := Status{Clock: time.Now}
	if o := s.Get(); o.Observed() != nil {
		t.Error("a slot without a binding reports one")
	}
	s.Begin(&dxpuv1.DesiredBinding{BindingId: "b", Epoch: 4})
	s.Advance(dxpuv1.BindingState_BINDING_STATE_PREPARING, 0, "")
	s.Step("link_up")
	s.Advance(dxpuv1.BindingState_BINDING_STATE_LOST, 0, "why")
	have := s.Get()
	o := have.Observed()
	var names []string
	for _, step := range o.Steps {
		names = append(names, step.Name)
	}
	if got := strings.Join(names, " "); got != "preparing link_up lost" {
		t.Errorf("steps %q", got)
	}
	if o.BindingId != "b" || o.Epoch != 4 || o.Detail != "why" || o.State != dxpuv1.BindingState_BINDING_STATE_LOST {
		t.Errorf("%v", o)
	}
	if o.Steps[0].Duration != nil || o.Steps[1].Duration == nil {
		t.Error("a duration is not that since the previous step")
	}
	want := wantedBinding()
	for _, c := range []struct {
		name string
		want *dxpuv1.DesiredBinding
		same bool
	}{
		{"nothing", nil, false},
		{"another epoch", want, false},
		{"this", &dxpuv1.DesiredBinding{BindingId: "b", Epoch: 4}, true},
		{"another binding", &dxpuv1.DesiredBinding{BindingId: "c", Epoch: 4}, false},
	} {
		if Same(c.want, have) != c.same {
			t.Errorf("%s: not %v", c.name, c.same)
		}
	}
	s.Step("more")
	if len(have.Steps) != 3 {
		t.Error("Get returned no copy")
	}
	s.End()
	if s.Get().ID != "" {
		t.Error("the binding is still reported after End")
	}
	d := &dxpuv1.DesiredState{Bindings: []*dxpuv1.DesiredBinding{want}}
	if Wanted(d, 1) != want || Wanted(d, 0) != nil || Wanted(nil, 0) != nil {
		t.Error("Wanted returns another binding")
	}
}

func TestLinkCounters(t *testing.T) {
	c := LinkCounters(link.Stats{
		TLPsSent: 1, BytesReceived: 2, LostDatagrams: 3, Drops: link.Drops{Seal: 4, Replay: 5},
		Paths: []link.PathStats{{Usable: false, SRTT: 1}, {Usable: true, SRTT: 7 * time.Microsecond}, {Usable: true, SRTT: 5 * time.Microsecond}},
	})
	if c.TlpsSent != 1 || c.BytesReceived != 2 || c.DatagramsRetransmitted != 3 || c.DatagramsRefused != 9 || c.RttNs != 5000 {
		t.Errorf("%v", c)
	}
}
