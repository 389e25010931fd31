package link_test

import (
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/link/linktest"
	"github.com/dxpu-project/dxpu/tlp"
)

// recorded returns a session with some traffic and every datagram that the host
// sent.
func recorded(t testing.TB, cipher link.Cipher) (*linktest.Network, [][]byte) {
	t.Helper()
	n := network(t, linktest.Config{Ends: linktest.Ends(cipher, jumbo)}, "delay=20us", jumbo)
	var sent [][]byte
	n.OnDatagram = func(from linktest.Side, _ uint8, d []byte) {
		if from == linktest.Host {
			sent = append(sent, slices.Clone(d))
		}
	}
	for range 20 {
		if err := n.Send(linktest.Host, memoryWrite(4096)); err != nil {
			t.Fatal(err)
		}
	}
	n.Run(10 * time.Millisecond)
	if len(n.Arrived[linktest.Box]) != 20 || len(sent) < 10 {
		t.Fatalf("%d TLPs arrived in %d datagrams", len(n.Arrived[linktest.Box]), len(sent))
	}
	return n, sent
}

func TestReplayedDatagramsAreDropped(t *testing.T) {
	n, sent := recorded(t, link.CipherAES256GCM)
	for i, d := range sent {
		err := n.Inject(linktest.Box, 0, d)
		if h, _, _ := frame.ParseHeader(d); h.Type == frame.TypeTraffic && !errors.Is(err, link.ErrReplay) {
			t.Errorf("datagram %d: %v, want %v", i, err, link.ErrReplay)
		}
	}
	n.Run(n.Now + 3*time.Second)
	if len(n.Arrived[linktest.Box]) != 20 || n.Link[0].State() != link.Up || n.Link[1].State() != link.Up {
		t.Errorf("%d TLPs, states %v %v", len(n.Arrived[linktest.Box]), n.Link[0].State(), n.Link[1].State())
	}
}

// The replayed numbers include those whose bits a newer number has reused (RFC
// 6479). No replay counts as a sign of life of a dead box.
func TestReplaysDoNotKeepADeadPeerAlive(t *testing.T) {
	n := up(t, linktest.Config{Ends: linktest.Ends(link.CipherAES256GCM, ethernet)}, "delay=20us", ethernet)
	var sent [][]byte
	n.OnDatagram = func(from linktest.Side, _ uint8, d []byte) {
		if from == linktest.Box {
			sent = append(sent, slices.Clone(d))
		}
	}
	for len(sent) < 4300 {
		if n.Send(linktest.Box, memoryWrite(1024)) != nil {
			n.Run(n.Now + 100*time.Microsecond)
		}
	}
	n.Run(n.Now + 20*time.Millisecond)
	n.SetPlan(linktest.Box, 0, plan(t, "loss=100%"))
	died, host := n.Now, n.Link[linktest.Host]
	for i, d := range sent {
		if err := n.Inject(linktest.Host, 0, d); !errors.Is(err, link.ErrReplay) {
			t.Fatalf("datagram %d of %d replayed: %v, want %v", i, len(sent), err, link.ErrReplay)
		}
		if i%10 == 0 {
			n.Run(n.Now + time.Millisecond)
		}
	}
	n.RunUntil(n.Now+20*time.Second, func() bool { return host.State() == link.Down })
	if took := n.Now - died; took > 1100*time.Millisecond {
		t.Errorf("the death of the box is noticed after %v, want 1 s", took)
	}
}

// A session drops the datagrams of an earlier session of the same epoch.
func TestDatagramsOfAnEarlierSessionAreDropped(t *testing.T) {
	for _, cipher := range []link.Cipher{link.CipherNone, link.CipherAES256GCM} {
		t.Run(cipher.String(), func(t *testing.T) {
			_, old := recorded(t, cipher)
			ends := linktest.Ends(cipher, jumbo)
			ends[0].Session, ends[1].Session = 0x3333, 0x4444
			n := up(t, linktest.Config{Ends: ends}, "delay=20us", jumbo)
			for _, d := range old {
				_ = n.Inject(linktest.Box, 0, d)
			}
			n.Run(n.Now + 2*time.Second)
			if len(n.Arrived[linktest.Box]) != 0 || n.Link[0].State() != link.Up || n.Link[1].State() != link.Up {
				t.Errorf("%d TLPs, states %v %v", len(n.Arrived[linktest.Box]), n.Link[0].State(), n.Link[1].State())
			}
		})
	}
}

func TestForgedAndStaleDatagramsAreCounted(t *testing.T) {
	n, sent := recorded(t, link.CipherAES256GCM)
	last := sent[len(sent)-1]
	forge := func(change func(d []byte)) []byte {
		d := slices.Clone(last)
		d[12] = 1 // a number that was not sent yet
		change(d)
		return d
	}
	for _, tc := range []struct {
		name  string
		d     []byte
		err   error
		count func(link.Drops) uint64
	}{
		{"body", forge(func(d []byte) { d[40] ^= 1 }), link.ErrSeal, func(d link.Drops) uint64 { return d.Seal }},
		{"number", forge(func([]byte) {}), link.ErrSeal, func(d link.Drops) uint64 { return d.Seal }},
		{"phase", forge(func(d []byte) { d[1] = 9 }), link.ErrSeal, func(d link.Drops) uint64 { return d.Seal }},
		{"next phase", forge(func(d []byte) { d[1] = 1 }), link.ErrSeal, func(d link.Drops) uint64 { return d.Seal }},
		{"epoch", forge(func(d []byte) { d[11]-- }), link.ErrStaleEpoch, func(d link.Drops) uint64 { return d.StaleEpoch }},
		{"binding", forge(func(d []byte) { d[7]++ }), link.ErrNotMine, func(d link.Drops) uint64 { return d.NotMine }},
		{"path", forge(func(d []byte) { d[2]++ }), link.ErrPath, func(d link.Drops) uint64 { return d.Path }},
		{"version", forge(func(d []byte) { d[0] = 0x35 }), link.ErrMalformed, func(d link.Drops) uint64 { return d.Malformed }},
		{"empty", nil, link.ErrMalformed, func(d link.Drops) uint64 { return d.Malformed }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := tc.count(n.Link[linktest.Box].Stats().Drops)
			if err := n.Inject(linktest.Box, 0, tc.d); !errors.Is(err, tc.err) {
				t.Errorf("got %v, want %v", err, tc.err)
			}
			if got := tc.count(n.Link[linktest.Box].Stats().Drops) - before; got != 1 {
				t.Errorf("counted %d times", got)
			}
		})
	}
	for size := range last {
		if err := n.Inject(linktest.Box, 0, last[:size]); err == nil {
			t.Errorf("%d of %d bytes were accepted", size, len(last))
		}
	}
	transfer(t, n, 20, n.Now+time.Second, nil)
}

func TestIdleLinkIsSmall(t *testing.T) {
	const count = 8
	ends := linktest.Ends(link.CipherAES256GCM, jumbo, jumbo)
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	var links [][2]*link.Link
	for i := range count {
		n := up(t, linktest.Config{Ends: ends, Seed: uint64(i)}, "delay=20us,loss=1%,reorder=1%", jumbo, jumbo)
		transfer(t, n, 500, n.Now+5*time.Second, nil)
		n.OnDeliver = nil
		n.Run(n.Now + 2*time.Second)
		links = append(links, n.Link)
	}
	each := int64(heap()-before) / count / 2
	t.Logf("%d bytes per idle end", each)
	if each > 64<<10 {
		t.Errorf("%d bytes per idle end, want at most 64 KiB", each)
	}
	runtime.KeepAlive(links)
}

func TestSendBufferIsBounded(t *testing.T) {
	ends := linktest.Ends(link.CipherNone, jumbo)
	ends[0].SendBuffer = 128 << 10
	l, err := link.New(0, ends[0])
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for ; err == nil; count++ {
		if room := l.Room(); room < 4096 != (128<<10-count*(4096+frame.TLPCost) < 4096+frame.TLPCost) {
			t.Fatalf("room %d after %d TLPs", room, count)
		}
		err = l.Send(0, memoryWrite(4096))
	}
	if !errors.Is(err, link.ErrFull) || count-1 != 128<<10/(4096+frame.TLPCost) {
		t.Errorf("%v after %d TLPs", err, count-1)
	}
	if err := l.Send(0, &tlp.Packet{}); err == nil || errors.Is(err, link.ErrFull) {
		t.Errorf("an invalid TLP: %v", err)
	}
}

// A sender respects the small window of its peer.
func TestCreditHoldsTheSenderBack(t *testing.T) {
	ends := linktest.Ends(link.CipherAES256GCM, jumbo)
	ends[1].Window = 64 << 10
	n := network(t, linktest.Config{Ends: ends}, "delay=20us,loss=2%,reorder=5%", jumbo)
	held := 0
	transfer(t, n, 1500, 20*time.Second, func() { held = max(held, n.Link[1].Stats().ReceiveHeld) })
	if held == 0 || held > 64<<10 {
		t.Errorf("receiver held %d bytes of 64 KiB", held)
	}
	if d := n.Link[1].Stats().Drops; d.Credit > 0 {
		t.Errorf("%d datagrams beyond the credit", d.Credit)
	}
}

func TestAnyFaultsExactlyOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		share := func(name string, max int) float64 { return float64(rapid.IntRange(0, max).Draw(t, name)) / 1000 }
		paths := rapid.IntRange(1, 3).Draw(t, "paths")
		cfg := linktest.Config{Seed: rapid.Uint64().Draw(t, "seed")}
		var mtus []int
		for range paths {
			mtus = append(mtus, rapid.SampledFrom([]int{1232, ethernet, jumbo, loopback}).Draw(t, "mtu"))
			var p linktest.Path
			for i := range p.Plans {
				p.Plans[i] = fault.Plan{
					Loss: share("loss", 100), Dup: share("dup", 100), Reorder: share("reorder", 100), Corrupt: share("corrupt", 50),
					Delay:  time.Duration(rapid.IntRange(0, 200_000).Draw(t, "delay")),
					Jitter: time.Duration(rapid.IntRange(0, 50_000).Draw(t, "jitter")),
				}
			}
			cfg.Paths = append(cfg.Paths, p)
		}
		cfg.Ends = linktest.Ends(rapid.SampledFrom([]link.Cipher{link.CipherNone, link.CipherAES256GCM}).Draw(t, "cipher"), mtus...)
		for i := range cfg.Ends {
			cfg.Ends[i].Window = rapid.SampledFrom([]int{64 << 10, 1 << 20, 4 << 20}).Draw(t, "window")
			cfg.Ends[i].RekeyDatagrams = uint64(rapid.IntRange(20, 1000).Draw(t, "rekey"))
		}
		n, err := linktest.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		total := rapid.IntRange(1, 80).Draw(t, "total")
		streams := [2]*linktest.Stream{linktest.NewStream(1, sizes...), linktest.NewStream(2, sizes...)}
		n.OnDeliver = func(to linktest.Side, p *tlp.Packet) {
			if err := streams[1-to].Check(p); err != nil {
				t.Fatal(err)
			}
		}
		if !n.RunUntil(60*time.Second, func() bool {
			for side, s := range streams {
				if err := s.Feed(n, linktest.Side(side), total); err != nil {
					t.Fatal(err)
				}
			}
			return streams[0].Seen() == total && streams[1].Seen() == total && n.Link[0].Idle() && n.Link[1].Idle()
		}) {
			t.Fatalf("%d and %d of %d arrived\n%+v\n%+v", streams[0].Seen(), streams[1].Seen(), total, n.Link[0].Stats(), n.Link[1].Stats())
		}
	})
}

// An owner that cannot pass TLPs on stops its peer and later resumes it, even if
// the datagram with the new limit is lost.
func TestHoldStopsThePeer(t *testing.T) {
	ends := linktest.Ends(link.CipherAES256GCM, jumbo)
	ends[linktest.Box].Window = 64 << 10
	n := up(t, linktest.Config{Ends: ends}, "delay=20us,loss=20%", jumbo)
	const total, cost = 200, 4096 + frame.TLPCost
	arrived, owned := 0, 0
	n.OnDeliver = func(linktest.Side, *tlp.Packet) {
		arrived++
		owned += cost
		n.Link[linktest.Box].Hold(n.Now, owned)
	}
	for range total {
		if err := n.Send(linktest.Host, memoryWrite(4096)); err != nil {
			t.Fatal(err)
		}
	}
	for before := -1; arrived < total; {
		n.Run(n.Now + time.Second)
		if arrived == before {
			t.Fatalf("stuck after %d TLPs", arrived)
		}
		if owned > 2*64<<10 {
			t.Fatalf("owner holds %d bytes", owned)
		}
		before, owned = arrived, 0
		n.Link[linktest.Box].Hold(n.Now, 0)
	}
}

// unknownSession returns the report of a run of the box that it does not know the
// session of some traffic of a version.
func unknownSession(t *testing.T, cfg link.Config, version uint8) []byte {
	t.Helper()
	box, err := link.New(0, cfg)
	if err != nil {
		t.Fatal(err)
	}
	h := frame.Header{Version: version, Type: frame.TypeTraffic, Binding: cfg.Binding, Epoch: cfg.Epoch}
	if err := box.Receive(0, 0, h.Append(nil), nil); !errors.Is(err, link.ErrNoSession) {
		t.Fatalf("traffic of an unknown session: %v", err)
	}
	buf := make([]byte, frame.MinMTU)
	n, _ := box.Transmit(0, buf)
	return buf[:n]
}

// An attacker repeats what an earlier run of the box has reported, at the moment in
// which the confirm is lost. The host repeats the confirm all the same.
func TestReplayedReportDoesNotEndTheHandshake(t *testing.T) {
	ends := linktest.Ends(link.CipherAES256GCM, ethernet)
	earlier := ends[linktest.Box]
	earlier.Session = 0x9999
	report := unknownSession(t, earlier, frame.Version2)
	links := newLinks(t, ends)
	lost := false
	exchange(t, links, 100*time.Millisecond, func(_ linktest.Side, d []byte) []byte {
		if h, _, _ := frame.ParseHeader(d); h.Type != frame.TypeConfirm || lost {
			return d
		}
		lost = true
		if err := links[linktest.Host].Receive(0, 0, report, nil); err != nil {
			t.Errorf("the report: %v", err)
		}
		return nil
	})
	if !lost || links[0].State() != link.Up || links[1].State() != link.Up {
		t.Errorf("states %v and %v; confirm lost: %v", links[0].State(), links[1].State(), lost)
	}
}

// A peer that waits for a new limit has nothing in flight that would ask for it. A lost datagram
// with the limit, or a path that has failed with it, delays the peer by no more than the probes
// take, not until one of the ends pings the other.
func TestALostLimitIsToldAgain(t *testing.T) {
	for _, c := range []struct {
		name   string
		mtus   []int
		within time.Duration
	}{
		{"one path", []int{jumbo}, 25 * time.Millisecond},
		{"a path that fails", []int{jumbo, jumbo}, 30 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			ends := linktest.Ends(link.CipherAES256GCM, c.mtus...)
			ends[linktest.Box].Window = 64 << 10
			n := up(t, linktest.Config{Ends: ends}, "delay=20us", c.mtus...)
			arrived, owned := 0, 0
			n.OnDeliver = func(linktest.Side, *tlp.Packet) {
				arrived++
				owned += 4096 + frame.TLPCost
				n.Link[linktest.Box].Hold(n.Now, owned)
			}
			for range 60 {
				if err := n.Send(linktest.Host, memoryWrite(4096)); err != nil {
					t.Fatal(err)
				}
			}
			n.Run(n.Now + 20*time.Millisecond)
			before := arrived
			n.SetPlan(linktest.Box, 0, plan(t, "loss=100%"))
			owned = 0
			released := n.Now
			n.Link[linktest.Box].Hold(n.Now, 0)
			if len(c.mtus) == 1 {
				n.Run(n.Now + 100*time.Microsecond) // one datagram is lost
				n.SetPlan(linktest.Box, 0, plan(t, "delay=20us"))
			}
			n.RunUntil(n.Now+time.Second, func() bool { return arrived > before })
			if took := n.Now - released; took > c.within {
				t.Errorf("the peer went on after %v, want at most %v", took, c.within)
			}
		})
	}
}
