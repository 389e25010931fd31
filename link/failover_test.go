package link_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/link/linktest"
	"github.com/dxpu-project/dxpu/tlp"
)

// answerReads makes the box answer each read of the host at once. read returns how long the
// answer to a read takes.
func answerReads(t *testing.T, n *linktest.Network) (read func() time.Duration) {
	answers := 0
	n.OnDeliver = func(to linktest.Side, _ *tlp.Packet) {
		if to == linktest.Host {
			answers++
			return
		}
		if err := n.Send(linktest.Box, &tlp.Packet{Type: tlp.CplD, Length: 1, ByteCount: 4, Data: make([]byte, 4)}); err != nil {
			t.Error(err)
		}
	}
	return func() time.Duration {
		p := tlp.Packet{Type: tlp.MRd}
		p.SetMemory(0x1000, 4)
		if err := n.Send(linktest.Host, &p); err != nil {
			t.Fatal(err)
		}
		began, before := n.Now, answers
		if !n.RunUntil(n.Now+5*time.Second, func() bool { return answers > before }) {
			t.Fatal("a read is not answered")
		}
		return n.Now - began
	}
}

// A read that was sent by a path that has failed goes by the other one after a probe timeout,
// and so does its answer: on a busy machine, where answers take tens of milliseconds, the
// failure of the path would be certain only after the host's Completion Timeout.
func TestReadsDoNotWaitForTheFailureOfAPath(t *testing.T) {
	const busy = "delay=10ms,jitter=40ms"
	for seed := range uint64(30) {
		mtus := []int{jumbo, jumbo}
		n := up(t, linktest.Config{Ends: linktest.Ends(link.CipherAES256GCM, mtus...), Seed: seed}, busy, mtus...)
		read := answerReads(t, n)
		for range 30 {
			read()
			n.Run(n.Now + time.Duration(seed)*time.Millisecond)
		}
		cut := int(seed % 2)
		for _, side := range []linktest.Side{linktest.Host, linktest.Box} {
			n.SetPlan(side, cut, plan(t, "loss=100%"))
		}
		if took := read(); took > 600*time.Millisecond {
			t.Errorf("seed %d: a read took %v after path %d was cut", seed, took, cut)
		}
	}
}

// A link closes on each of its paths: most of them may have failed.
func TestCloseByTheLastPath(t *testing.T) {
	mtus := []int{jumbo, jumbo, jumbo, jumbo, jumbo, jumbo}
	for works := range mtus {
		n := up(t, linktest.Config{Ends: linktest.Ends(link.CipherAES256GCM, mtus...)}, "delay=20us", mtus...)
		for path := range mtus {
			if path != works {
				n.SetPlan(linktest.Host, path, plan(t, "loss=100%"))
			}
		}
		at := n.Now
		n.Link[linktest.Host].Close(n.Now, 1)
		n.RunUntil(at+5*time.Second, func() bool { return n.Link[linktest.Box].State() == link.Down })
		if reason, _ := n.Link[linktest.Box].Reason(); reason != link.PeerClosed || n.Now-at > 10*time.Millisecond {
			t.Errorf("path %d works: the peer notes %v after %v", works, reason, n.Now-at)
		}
	}
}
