package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dxpu-project/dxpu/internal/agent"
)

// top is one table of "dxpu top" for a proxy.
type top struct {
	Role    string        `json:"role"`
	Time    time.Time     `json:"time"`
	Elapsed time.Duration `json:"elapsed_ns"` // the time that the rates cover
	Slots   []topSlot     `json:"slots"`
}

// topSlot is a slot with values computed from two reports.
type topSlot struct {
	agent.SlotReport
	// Least to Here are columns of the table; 0: unknown.
	Least   time.Duration `json:"network_least_ns"`
	Network time.Duration `json:"network_ns"`
	Request time.Duration `json:"request_ns"`
	Far     time.Duration `json:"far_ns"`
	Here    time.Duration `json:"here_ns"`
	Rates   topRates      `json:"rates"`
}

// topRates are per second.
type topRates struct {
	TLPsOut         float64 `json:"tlps_out"`
	TLPsIn          float64 `json:"tlps_in"`
	MBOut           float64 `json:"mb_out"` // 10^6 bytes of payload
	MBIn            float64 `json:"mb_in"`
	Retransmissions float64 `json:"retransmissions"`
	Duplicates      float64 `json:"duplicates"`
	Lost            float64 `json:"lost_datagrams"`
	Interrupts      float64 `json:"interrupts"`
}

// newTop compares two reports of a proxy, with or without the free slots. The times are
// those of the proxy's clock.
func newTop(prev, cur *agent.Report, free bool) *top {
	t := &top{Role: cur.Role, Time: cur.Time, Elapsed: cur.Time.Sub(prev.Time)}
	before := map[int]*agent.SlotReport{}
	for i := range prev.Slots {
		before[prev.Slots[i].Slot] = &prev.Slots[i]
	}
	for i := range cur.Slots {
		if s := &cur.Slots[i]; free || s.Binding != nil {
			t.Slots = append(t.Slots, newTopSlot(before[s.Slot], s, t.Elapsed))
		}
	}
	return t
}

func newTopSlot(prev, cur *agent.SlotReport, elapsed time.Duration) topSlot {
	s := topSlot{SlotReport: *cur}
	l := linkOf(cur)
	if l == nil {
		return s
	}
	for _, p := range l.Paths {
		if p.Usable && (s.Network == 0 || p.MinRTT < s.Least) {
			s.Least, s.Network = p.MinRTT, p.SRTT
		}
	}
	s.Request, s.Here = l.Sent.Smoothed, l.Served.Smoothed
	if s.Request > 0 && s.Least > 0 {
		s.Far = max(s.Request-s.Least, 0)
	}
	old := &agent.LinkReport{}
	irqs := cur.Counters.Interrupts
	if prev != nil {
		irqs = prev.Counters.Interrupts
		if o := linkOf(prev); o != nil && cur.Binding.ID == prev.Binding.ID && cur.Binding.Epoch == prev.Binding.Epoch {
			old = o // otherwise the link is new and has counted from zero
		}
	}
	rate := func(now, then uint64) float64 {
		if elapsed <= 0 || now < then {
			return 0
		}
		return float64(now-then) / elapsed.Seconds()
	}
	const mb = 1e6
	s.Rates = topRates{
		TLPsOut: rate(l.TLPsOut, old.TLPsOut), TLPsIn: rate(l.TLPsIn, old.TLPsIn),
		MBOut: rate(l.BytesOut, old.BytesOut) / mb, MBIn: rate(l.BytesIn, old.BytesIn) / mb,
		Retransmissions: rate(l.Retransmissions, old.Retransmissions), Duplicates: rate(l.Duplicates, old.Duplicates),
		Lost: rate(l.Lost, old.Lost), Interrupts: rate(cur.Counters.Interrupts, irqs),
	}
	return s
}

func linkOf(s *agent.SlotReport) *agent.LinkReport {
	if s.Binding == nil {
		return nil
	}
	return s.Binding.Link
}

// write prints the table.
func (t *top) write(w io.Writer) {
	var out, in float64
	for i := range t.Slots {
		out, in = out+t.Slots[i].Rates.MBOut, in+t.Slots[i].Rates.MBIn
	}
	fmt.Fprintf(w, "%s at %s, %d slots, %.1f MB/s out, %.1f MB/s in\n\n", t.Role, t.Time.Format(time.TimeOnly), len(t.Slots), out, in)
	tw := newTable(w, "SLOT", "BINDING", "EPOCH", "PEER", "STATE", "LEAST", "NETWORK", "REQUEST", "FAR", "HERE",
		"TLP/S OUT", "IN", "MB/S OUT", "IN", "RESENT/S", "TAGS", "IRQ/S", "NOTES")
	for i := range t.Slots {
		t.Slots[i].row(tw)
	}
	tw.flush()
}

func (s *topSlot) row(tw *table) {
	b := s.Binding
	if b == nil {
		tw.row(s.Slot, "", "", "", "free", "", "", "", "", "", "", "", "", "", "", "", "", s.Device)
		return
	}
	r := &s.Rates
	tags := ""
	if s.Tags != nil {
		tags = fmt.Sprintf("%d/%d", s.Tags.InFlight, s.Tags.Total)
	}
	tw.row(s.Slot, b.ID, b.Epoch, fmt.Sprintf("%d/%d", b.Peer.Node, b.Peer.Slot), b.State,
		micros(s.Least), micros(s.Network), micros(s.Request), micros(s.Far), micros(s.Here),
		perSecond(r.TLPsOut), perSecond(r.TLPsIn), fmt.Sprintf("%.1f", r.MBOut), fmt.Sprintf("%.1f", r.MBIn),
		perSecond(r.Retransmissions), tags, perSecond(r.Interrupts), strings.Join(s.notes(), ", "))
}

// notes lists problems.
func (s *topSlot) notes() (out []string) {
	if d := s.Binding.Detail; d != "" {
		out = append(out, d)
	}
	l := linkOf(&s.SlotReport)
	if l == nil {
		return out
	}
	if l.State != "up" {
		out = append(out, "link "+l.State)
	}
	for i, p := range l.Paths {
		if !p.Usable && l.State == "up" {
			out = append(out, fmt.Sprintf("path %d is broken", i))
		}
	}
	c := &s.Counters
	for _, n := range []struct {
		what string
		n    uint64
	}{
		{"DMA refused", c.DMARefused},
		{"unsupported", c.Unsupported},
		{"timeouts", c.Timeouts},
		{"errors", c.Errors},
		{"dropped TLPs", c.Dropped},
		{"duplicates", l.Duplicates},
	} {
		if n.n > 0 {
			out = append(out, fmt.Sprintf("%s %d", n.what, n.n))
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(l.Drops)) {
		out = append(out, fmt.Sprintf("dropped %s %d", reason, l.Drops[reason]))
	}
	return out
}

// micros prints a time in microseconds, "" for 0.
func micros(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f µs", float64(d)/float64(time.Microsecond))
}

func perSecond(v float64) string { return fmt.Sprintf("%.0f", v) }
