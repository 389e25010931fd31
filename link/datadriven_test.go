package link_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/link/linktest"
	"github.com/dxpu-project/dxpu/tlp"
)

// TestScenarios runs testdata/*.txt; -rewrite updates the expected output. The
// commands:
//
//	link MTU...               two ends in clear, with one path per MTU
//	plan SIDE PATH FAULTS     faults of the datagrams from SIDE
//	send SIDE COUNT SIZE      TLPs with SIZE bytes of payload (0: reads)
//	run TIME                  advances the time and prints every datagram and delivery
//	quiet TIME                advances the time
//	close SIDE CODE, hold SIDE BYTES, restart SIDE SESSION
//	show                      prints both ends' states
//	window SIDE               prints the congestion windows of a side's paths
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var s scenario
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.out.Reset()
			if err := s.command(strings.Fields(d.FullCmd())); err != nil {
				t.Fatalf("%s: %v", d.Pos, err)
			}
			return s.out.String()
		})
	})
}

type scenario struct {
	net    *linktest.Network
	out    strings.Builder
	silent bool
}

func (s *scenario) command(f []string) error {
	arg := func(i int) int {
		if i >= len(f) {
			return 0
		}
		n, _ := strconv.Atoi(f[i])
		return n
	}
	if f[0] == "link" {
		return s.open(f[1:])
	}
	side := linktest.Host
	if len(f) > 1 && f[1] == "box" {
		side = linktest.Box
	}
	switch f[0] {
	case "plan":
		p, err := fault.Parse(f[3])
		s.net.SetPlan(side, arg(2), p)
		return err
	case "send":
		for range arg(2) {
			p := memoryRead()
			if arg(3) > 0 {
				p = memoryWrite(arg(3))
			}
			if err := s.net.Send(side, p); err != nil {
				return err
			}
		}
	case "run", "quiet":
		d, err := time.ParseDuration(f[1])
		s.silent = f[0] == "quiet"
		s.net.Run(s.net.Now + d)
		return err
	case "close":
		s.net.Link[side].Close(s.net.Now, uint16(arg(2)))
	case "hold":
		s.net.Link[side].Hold(s.net.Now, arg(2))
	case "restart":
		return s.net.Restart(side, uint64(arg(2)))
	case "show":
		for side, l := range s.net.Link {
			reason, code := l.Reason()
			st := l.Stats()
			fmt.Fprintf(&s.out, "%-4s %v (%v, %d): delivered %d, resent %d, duplicates %d, dropped %d",
				[]string{"host", "box"}[side], l.State(), reason, code, st.TLPsReceived, st.Retransmissions, st.Duplicates, st.Drops.Total())
			for i, p := range st.Paths {
				fmt.Fprintf(&s.out, "; path %d: usable %v, MTU %d", i, p.Usable, p.MTU)
			}
			fmt.Fprintln(&s.out)
		}
	case "window":
		for i, p := range s.net.Link[side].Stats().Paths {
			fmt.Fprintf(&s.out, "path %d: window %d, in flight %d\n", i, p.Cwnd, p.InFlight)
		}
	default:
		return fmt.Errorf("unknown command")
	}
	return nil
}

func (s *scenario) open(mtus []string) error {
	var sizes []int
	cfg := linktest.Config{}
	for _, m := range mtus {
		n, err := strconv.Atoi(m)
		if err != nil {
			return err
		}
		p := fault.Plan{Delay: 10 * time.Microsecond}
		sizes = append(sizes, n)
		cfg.Paths = append(cfg.Paths, linktest.Path{Plans: [2]fault.Plan{p, p}})
	}
	cfg.Ends = linktest.Ends(link.CipherNone, sizes...)
	n, err := linktest.New(cfg)
	if err != nil {
		return err
	}
	s.net = n
	n.OnDatagram = func(from linktest.Side, path uint8, d []byte) {
		if !s.silent {
			fmt.Fprintf(&s.out, "%8v %s %d %4d %s\n", n.Now, []string{"host→box", "box→host"}[from], path, len(d), describe(d))
		}
	}
	n.OnDeliver = func(to linktest.Side, p *tlp.Packet) {
		if !s.silent {
			fmt.Fprintf(&s.out, "%8v %s gets %v %d\n", n.Now, []string{"host", "box"}[to], p.Type, len(p.Data))
		}
	}
	return nil
}

// describe prints a clear datagram.
func describe(d []byte) string {
	h, n, err := frame.ParseHeader(d)
	if err != nil {
		return err.Error()
	}
	if h.Type != frame.TypeTraffic {
		return fmt.Sprintf("%v %x %x", h.Type, h.Initiator, h.Responder)
	}
	words := []string{fmt.Sprintf("#%d:", h.Number)}
	for body := d[n : len(d)-frame.CheckSize]; len(body) > 0; {
		var hp frame.HeaderPacket
		var dp frame.DataPacket
		var a frame.Ack
		n, word := len(body), frame.Kind(body[0]).String()
		switch frame.Kind(body[0]) {
		case frame.KindHeader:
			n, err = hp.Parse(body, frame.Checked)
			word = fmt.Sprintf("header %d", hp.Seq)
		case frame.KindData:
			n, err = dp.Parse(body, frame.Checked)
			word = fmt.Sprintf("data %d[%d+%d]", dp.Seq, dp.Offset, len(dp.Chunk))
		case frame.KindAck:
			n, err = a.Parse(body, frame.Checked)
			word = fmt.Sprintf("ack(path %d, limit %d)", a.Path, a.Limit)
			for _, r := range a.Ranges[:a.Count] {
				word += fmt.Sprintf(" %d-%d", r.First, r.Last)
			}
		case frame.KindPing:
			n, err = frame.ParsePing(body, frame.Checked)
		case frame.KindClose:
			_, n, err = frame.ParseClose(body, frame.Checked)
		}
		if err != nil {
			return err.Error()
		}
		words, body = append(words, word), body[n:]
	}
	return strings.Join(words, " ")
}
