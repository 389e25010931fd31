package link_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/link/linktest"
)

// marking returns two ends that let the network mark datagrams.
func marking(c link.Cipher, mtus ...int) [2]link.Config {
	ends := linktest.Ends(c, mtus...)
	ends[0].ECN, ends[1].ECN = true, true
	return ends
}

// Where the network marks datagrams, links fill the bottleneck and lose nothing, share it
// evenly, and their datagrams wait less. If an end speaks an older version, none is marked.
func TestMarksInsteadOfLosses(t *testing.T) {
	for _, c := range []struct {
		name    string
		links   int
		version uint8 // of the box
		mark    int
		losses  bool
	}{
		{"one link", 1, frame.Newest, 64 << 10, false},
		{"four links", 4, frame.Newest, 64 << 10, false},
		{"no marks", 4, frame.Newest, 0, true},
		{"an older version", 4, frame.Version4, 64 << 10, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := &linktest.Shared{Rate: 1e9 / 8, Queue: 512 << 10, Delay: 100 * time.Microsecond, Mark: c.mark}
			var flows []*linktest.LinkFlow
			for range c.links {
				ends := marking(link.CipherNone, ethernet)
				ends[linktest.Box].MaxVersion = c.version
				f, err := linktest.NewLinkFlow(s.Now, ends, 4096)
				if err != nil {
					t.Fatal(err)
				}
				s.Add(f)
				flows = append(flows, f)
			}
			s.Run(500 * time.Millisecond)
			began, before, lost := s.Now, make([]int, len(flows)), make([]uint64, len(flows))
			for i, f := range flows {
				before[i], lost[i] = f.Arrived(), f.Link[linktest.Host].Stats().LostDatagrams
			}
			s.Run(began + time.Second)
			var shares []float64
			total, losses, marks, cuts := 0.0, uint64(0), uint64(0), uint64(0)
			for i, f := range flows {
				host, box := f.Link[linktest.Host].Stats(), f.Link[linktest.Box].Stats()
				share := float64(f.Arrived()-before[i]) / (s.Rate * (s.Now - began).Seconds())
				shares, total = append(shares, share), total+share
				losses, marks, cuts = losses+host.LostDatagrams-lost[i], marks+box.MarkedDatagrams, cuts+host.MarkCuts
			}
			t.Logf("shares %.3f, sum %.3f, index %.3f; %d lost, %d marked, %d cuts", shares, total, jain(shares), losses, marks, cuts)
			if total < 0.9 || !c.losses && jain(shares) < 0.95 || c.losses != (losses > 0) || c.losses != (marks == 0) || c.losses != (cuts == 0) {
				t.Errorf("shares %.3f, sum %.3f, index %.3f; %d lost, %d marked, %d cuts", shares, total, jain(shares), losses, marks, cuts)
			}
		})
	}
}

// A peer that tells of no marks has no more of a bottleneck than others for long.
func TestPeerThatHidesMarks(t *testing.T) {
	s := &linktest.Shared{Rate: 1e9 / 8, Queue: 512 << 10, Delay: 100 * time.Microsecond, Mark: 64 << 10}
	var flows []*linktest.LinkFlow
	for range 4 {
		f, err := linktest.NewLinkFlow(s.Now, marking(link.CipherNone, ethernet), 4096)
		if err != nil {
			t.Fatal(err)
		}
		s.Add(f)
		flows = append(flows, f)
	}
	s.Run(500 * time.Millisecond)
	flows[0].HidesMarks = true
	s.Run(12 * time.Second) // it is found out by one of the marks that the host sets, every 4 to 12 s
	var before [4]int
	for i, f := range flows {
		before[i] = f.Arrived()
	}
	began := s.Now
	s.Run(began + time.Second)
	var shares []float64
	for i, f := range flows {
		shares = append(shares, float64(f.Arrived()-before[i])/(s.Rate*(s.Now-began).Seconds()))
		if hidden := f.Link[linktest.Host].Stats().HiddenMarks; (hidden > 0) != (i == 0) {
			t.Errorf("link %d: %d marks hidden", i, hidden)
		}
	}
	t.Logf("shares %.3f", shares)
	if shares[0] > 0.35 || min(shares[1], shares[2], shares[3]) < 0.1 {
		t.Errorf("shares %.3f: the first one hides marks", shares)
	}
}

// Marks do not lower the window of a link that does not use it.
func TestMarksOfAnIdleLink(t *testing.T) {
	n := up(t, linktest.Config{Ends: marking(link.CipherNone, ethernet)}, "delay=20us", ethernet)
	host, box := n.Link[linktest.Host], n.Link[linktest.Box]
	before := host.Stats().Paths[0].Cwnd
	for range 50 {
		box.Marked()
		if err := n.Send(linktest.Host, memoryWrite(64)); err != nil {
			t.Fatal(err)
		}
		n.Run(n.Now + 2*time.Millisecond)
	}
	if after := host.Stats().Paths[0].Cwnd; after < before || box.Stats().MarkedDatagrams != 50 {
		t.Errorf("window %d, before %d; %d marks", after, before, box.Stats().MarkedDatagrams)
	}
}

// A network that drops what might be marked does not keep a link from its work, nor a path of
// several from its part.
func TestDroppedForECN(t *testing.T) {
	for _, drops := range [][]bool{{true}, {true, true}, {false, true}, {true, false}} {
		var paths []linktest.Path
		mtus := make([]int, len(drops))
		for i, d := range drops {
			paths, mtus[i] = append(paths, linktest.Path{DropsMarkable: d}), jumbo
		}
		n := network(t, linktest.Config{Ends: marking(link.CipherAES256GCM, mtus...), Paths: paths}, "")
		transfer(t, n, 300, 5*time.Second, nil)
		n.Run(n.Now + 2*time.Second)
		for side, l := range n.Link {
			for i, p := range l.Stats().Paths {
				if !p.Usable {
					t.Errorf("paths that drop %v: side %d does not use path %d: %+v", drops, side, i, p)
				}
			}
		}
	}
}

// The acknowledgement counts marks modulo 256, and an older one changes nothing. A peer of an
// older version sends none.
func TestCountOfMarks(t *testing.T) {
	for _, version := range []uint8{frame.Version4, frame.Newest} {
		ends := marking(link.CipherNone, ethernet)
		ends[linktest.Box].MaxVersion = version
		n := up(t, linktest.Config{Ends: ends}, "delay=20us", ethernet)
		box := n.Link[linktest.Box]
		var acks []frame.Ack
		n.OnDatagram = func(from linktest.Side, _ uint8, d []byte) {
			var a frame.Ack
			if from == linktest.Box {
				if _, err := a.Parse(d[frame.HeaderSize:len(d)-frame.CheckSize], frame.Checked); err == nil {
					acks = append(acks, a)
				}
			}
		}
		for i := range 300 {
			box.Marked()
			if err := n.Send(linktest.Host, memoryWrite(64)); err != nil {
				t.Fatal(err)
			}
			n.Run(n.Now + 2*time.Millisecond)
			want := uint8(0)
			if version >= frame.Version5 {
				want = uint8(i + 1)
			}
			if len(acks) == 0 || acks[len(acks)-1].Marked != want {
				t.Fatalf("version %d, datagram %d: acknowledgements %v, want %d marks", version, i, acks, want)
			}
			acks = acks[:0]
		}
		if box.Stats().MarkedDatagrams != 300 {
			t.Errorf("version %d: %d marks", version, box.Stats().MarkedDatagrams)
		}
	}
}
