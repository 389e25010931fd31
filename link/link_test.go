package link_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/link/linktest"
	"github.com/dxpu-project/dxpu/tlp"
)

const (
	ethernet = 1472
	jumbo    = 8972
	loopback = 65507
)

var sizes = []int{0, 0, 4, 64, 128, 512, 4096, 4096, 4092}

func plan(t testing.TB, text string) fault.Plan {
	t.Helper()
	p, err := fault.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// network returns a network with the same faults on all paths in both directions.
func network(t testing.TB, cfg linktest.Config, faults string, mtus ...int) *linktest.Network {
	t.Helper()
	for range mtus {
		p := plan(t, faults)
		cfg.Paths = append(cfg.Paths, linktest.Path{Plans: [2]fault.Plan{p, p}})
	}
	n, err := linktest.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// transfer sends total TLPs in both directions and checks that each arrives exactly
// once and in order.
func transfer(t testing.TB, n *linktest.Network, total int, deadline time.Duration, during func()) {
	t.Helper()
	streams := [2]*linktest.Stream{linktest.NewStream(1, sizes...), linktest.NewStream(2, sizes...)}
	var failed error
	n.OnDeliver = func(to linktest.Side, p *tlp.Packet) {
		if err := streams[1-to].Check(p); err != nil && failed == nil {
			failed = err
		}
	}
	done := n.RunUntil(deadline, func() bool {
		for side, s := range streams {
			if err := s.Feed(n, linktest.Side(side), total); err != nil && failed == nil {
				failed = fmt.Errorf("side %d: %w", side, err)
			}
		}
		if during != nil {
			during()
		}
		return failed != nil || streams[0].Seen() == total && streams[1].Seen() == total &&
			n.Link[0].Idle() && n.Link[1].Idle()
	})
	if failed != nil {
		t.Fatalf("at %v: %v\nhost %+v\nbox %+v", n.Now, failed, n.Link[0].Stats(), n.Link[1].Stats())
	}
	if !done {
		t.Fatalf("at %v: %d and %d of %d TLPs arrived; states %v %v\nhost %+v\nbox %+v", n.Now, streams[0].Seen(), streams[1].Seen(), total,
			n.Link[0].State(), n.Link[1].State(), n.Link[0].Stats(), n.Link[1].Stats())
	}
}

func TestExactlyOnceInOrder(t *testing.T) {
	faults := []struct{ name, plan string }{
		{"perfect", "delay=10us"},
		{"loss 1%", "delay=10us,loss=1%"},
		{"loss 10%", "delay=10us,loss=10%"},
		{"dup", "delay=10us,dup=5%"},
		{"reorder", "delay=10us,jitter=5us,reorder=5%"},
		{"corrupt", "delay=10us,corrupt=1%"},
		{"all", "delay=20us,jitter=20us,loss=3%,dup=3%,reorder=3%,corrupt=3%"},
		{"short", "delay=600ns"},
	}
	for _, cipher := range []link.Cipher{link.CipherNone, link.CipherAES256GCM} {
		for _, mtu := range []int{ethernet, jumbo, loopback} {
			for _, f := range faults {
				for paths := 1; paths <= 2; paths++ {
					t.Run(fmt.Sprintf("%v/%d/%s/%d", cipher, mtu, f.name, paths), func(t *testing.T) {
						mtus := []int{mtu, mtu}[:paths]
						n := network(t, linktest.Config{Ends: linktest.Ends(cipher, mtus...), Seed: 1}, f.plan, mtus...)
						transfer(t, n, 200, 20*time.Second, nil)
						if testing.Verbose() {
							s := n.Link[0].Stats()
							t.Logf("%v: %d datagrams, %d lost, %d spurious, %d PTO, drops %+v", n.Now, s.DatagramsSent, s.LostDatagrams, s.SpuriousLosses, s.ProbeTimeouts, s.Drops)
						}
					})
				}
			}
		}
	}
}
