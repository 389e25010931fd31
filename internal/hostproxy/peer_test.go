package hostproxy_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// Two GPUs of one host reach each other: through their box when they are in
// one, by the host's switch otherwise.
func TestPeerToPeer(t *testing.T) {
	for _, c := range fronts {
		t.Run(c.name, func(t *testing.T) {
			t.Run("one box", func(t *testing.T) {
				r := newCluster(t, options{gpus: 2, inside: c.inside})
				r.attach(0, 0, 0, 0)
				r.attach(0, 1, 0, 1)
				copyPeer(t, r)
				if n := metric(t, r.boxes[0], "slot_peer_tlps_total"); n == 0 {
					t.Error("the box has not taken the short cut")
				}
				if n := metric(t, r.hosts[0], "slot_peer_tlps_total"); n != 0 {
					t.Errorf("%v TLPs went through the host", n)
				}
			})
			t.Run("two boxes", func(t *testing.T) {
				r := newCluster(t, options{boxes: 2, inside: c.inside})
				r.attach(0, 0, 0, 0)
				r.attach(0, 1, 1, 0)
				copyPeer(t, r)
				if n := metric(t, r.hosts[0], "slot_peer_tlps_total"); n == 0 {
					t.Error("the host has routed nothing")
				}
			})
		})
	}
}

func copyPeer(t *testing.T, r *cluster) {
	t.Helper()
	const n = 300<<10 + 8
	busA, a := r.open1(0, 0)
	busB, b := r.open1(0, 1)
	sa, err := a.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	sb, err := b.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	in, out := pattern(3, n), make([]byte, n)
	check(t, sb.Upload(t.Context(), 4096, in))
	check(t, sa.CopyPeer(t.Context(), 8192, b, 4096, n))
	check(t, sa.Download(t.Context(), out, 8192))
	if !bytes.Equal(in, out) {
		t.Error("other bytes came from the peer")
	}
	check(t, sa.Close())
	check(t, sb.Close())
	closeBoth(t, busA, a)
	closeBoth(t, busB, b)
}

// GPUs of different hosts do not reach each other, though they sit in one box
// and their hosts give them the same addresses.
func TestDomainsAreApart(t *testing.T) {
	r := newCluster(t, options{gpus: 2, hosts: 2})
	r.attach(0, 0, 0, 0)
	r.attach(1, 1, 0, 1)
	busA, a := r.open1(0, 0)
	busB, b := r.open1(1, 1)
	sb, err := b.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	check(t, sb.Upload(t.Context(), 0, pattern(9, 4096)))
	check(t, b.Flush())
	sa, err := a.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	err = sa.CopyPeer(t.Context(), 0, b, 0, 4096)
	var q *driver.QueueError
	if !errors.As(err, &q) || q.Code != reg.ErrDMARefused {
		t.Errorf("a read of another host's GPU: %v, want that it was refused", err)
	}
	check(t, sa.Reset())
	if n := metric(t, r.boxes[0], "slot_peer_tlps_total"); n != 0 {
		t.Errorf("%v TLPs took the short cut between two hosts", n)
	}
	check(t, sa.Close())
	check(t, sb.Close())
	closeBoth(t, busA, a)
	closeBoth(t, busB, b)
}
