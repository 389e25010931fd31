package cluster

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
)

// part is what fails.
type part uint8

// Parts, and what their failure takes. A server loses all its GPUs by each failure but
// that of a proxy, which it does not have. In a pool a GPU takes itself, a box and a proxy
// take all GPUs of a box, and a host takes none: its jobs start on another one.
const (
	partGPU part = iota
	partHost
	partBox
	partProxy
	parts
)

// outage is a part that is away for some time, in days.
type outage struct {
	part       part
	unit       int // server or box
	gpu        int // within unit
	start, end float64
}

// levels has the time, in days, for which each number of GPUs was away.
type levels []float64

func (l *levels) add(n int, days float64) {
	for len(*l) <= n {
		*l = append(*l, 0)
	}
	(*l)[n] += days
}

// mean returns the mean number of GPUs that are away.
func (l levels) mean() float64 {
	var sum, time float64
	for n, d := range l {
		sum += float64(n) * d
		time += d
	}
	return sum / time
}

// quantile returns the number that is not exceeded for a share of the time.
func (l levels) quantile(q float64) float64 {
	var time, seen float64
	for _, d := range l {
		time += d
	}
	for n, d := range l {
		if seen += d; seen >= q*time*(1-1e-12) {
			return float64(n)
		}
	}
	return float64(len(l) - 1)
}

// plant is what is away of servers, or of a pool of boxes, with equal numbers of GPUs.
type plant struct {
	pool  bool
	gpus  int // of a unit
	whole []int
	each  []int // of each GPU
	away  int
}

func newPlant(pool bool, units, gpus int) *plant {
	return &plant{pool: pool, gpus: gpus, whole: make([]int, units), each: make([]int, units*gpus)}
}

// change starts an outage or ends it: by is 1 or -1.
func (p *plant) change(o *outage, by int) {
	switch {
	case p.pool && o.part == partHost || !p.pool && o.part == partProxy:
	case p.pool && o.part == partGPU:
		g := o.unit*p.gpus + o.gpu
		before := p.whole[o.unit] > 0 || p.each[g] > 0
		p.each[g] += by
		p.note(before, p.whole[o.unit] > 0 || p.each[g] > 0, 1)
	default:
		before := p.whole[o.unit] > 0
		p.whole[o.unit] += by
		up := 0
		for _, n := range p.each[o.unit*p.gpus : (o.unit+1)*p.gpus] {
			if n == 0 {
				up++
			}
		}
		p.note(before, p.whole[o.unit] > 0, up)
	}
}

func (p *plant) note(before, after bool, gpus int) {
	switch {
	case after && !before:
		p.away += gpus
	case before && !after:
		p.away -= gpus
	}
}

// run returns the time for which each number of GPUs is away between two days.
func (p *plant) run(outages []outage, from, to float64) levels {
	type change struct {
		at float64
		by int
		o  *outage
	}
	var all []change
	for i := range outages {
		o := &outages[i]
		all = append(all, change{o.start, 1, o}, change{o.end, -1, o})
	}
	slices.SortStableFunc(all, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	var l levels
	now := from
	for _, c := range all {
		if at := min(c.at, to); at > now {
			l.add(p.away, at-now)
			now = at
		}
		p.change(c.o, c.by)
	}
	if now < to {
		l.add(p.away, to-now)
	}
	return l
}

// fault is a fault of a recorded list.
type fault struct {
	unit       int
	class      faultClass
	start, end float64
}

// faultClass is what a recorded fault says of its part.
type faultClass uint8

// Classes of faults.
const (
	faultGPU     faultClass = iota
	faultHost               // processors, network card, board and software, of the host in either case
	faultShared             // power, fans, cables: of the host or of the box
	faultUnknown            // the list does not tell
)

// faultClasses are the classes by the names of InfiniteHBD's list.
var faultClasses = map[string]faultClass{
	"GPU": faultGPU, "Parameter Plane Cable": faultShared, "Power Supply": faultShared, "Fan": faultShared,
	"NIC": faultHost, "CPU": faultHost, "Motherboard": faultHost, "Motherboard Battery": faultHost, "RAID Card": faultHost, "Riser Card": faultHost,
	"File System": faultHost, "Software Tool": faultHost, "Operating System": faultHost, "Firmware": faultHost,
}

// Limits of a list of faults.
const (
	maxFaultBytes = 64 << 20
	maxFaults     = 1_000_000
)

// readFaults reads a list of faults as JSON: an array of events, each with node_id,
// event_time in days, event_type (fault_start or fault_end) and fault_type with Level and
// Class, in the order of time, as in InfiniteHBD's list. It returns the faults, the number of
// nodes and the last day.
func readFaults(r io.Reader) (out []fault, nodes int, last float64, err error) {
	events, err := readEvents(r, 2*maxFaults)
	if err != nil {
		return nil, 0, 0, fmt.Errorf("cluster: faults: %w", err)
	}
	units := map[string]int{}
	type key struct{ node, level, class, desc string }
	open := map[key][]int{}
	for i, e := range events {
		if e.Time < last || math.IsNaN(e.Time) || e.Time > 1e6 {
			return nil, 0, 0, fmt.Errorf("cluster: faults: event %d: day %v after day %v: want ascending days up to a million", i+1, e.Time, last)
		}
		last = e.Time
		k := key{e.Node, e.Kind.Level, e.Kind.Class, e.Kind.Desc}
		switch {
		case e.Type == "fault_start":
			if _, ok := units[e.Node]; !ok {
				units[e.Node] = len(units)
			}
			open[k] = append(open[k], len(out))
			out = append(out, fault{unit: units[e.Node], class: classOf(e.Kind.Level, e.Kind.Class), start: e.Time, end: math.Inf(1)})
		case e.Type != "fault_end":
			return nil, 0, 0, fmt.Errorf("cluster: faults: event %d: type %q: want fault_start or fault_end", i+1, e.Type)
		case len(open[k]) > 0:
			out[open[k][0]].end = e.Time
			open[k] = open[k][1:]
		}
	}
	if len(out) == 0 {
		return nil, 0, 0, errors.New("cluster: faults: no fault starts")
	}
	return out, len(units), last, nil
}

// faultEvent is an event of a list of faults as it is written.
type faultEvent struct {
	Node string                              `json:"node_id"`
	Time float64                             `json:"event_time"`
	Type string                              `json:"event_type"`
	Kind struct{ Level, Class, Desc string } `json:"fault_type"`
}

// readEvents reads up to most events, one after the other: an event in memory is much larger
// than the shortest one in the file.
func readEvents(r io.Reader, most int) (out []faultEvent, err error) {
	in := &io.LimitedReader{R: r, N: maxFaultBytes + 1}
	d := json.NewDecoder(in)
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil, errors.Join(errors.New("want an array of events"), err)
	}
	for d.More() {
		var e faultEvent
		err := d.Decode(&e)
		switch {
		case in.N <= 0:
			return nil, fmt.Errorf("more than %d bytes", maxFaultBytes)
		case err != nil:
			return nil, fmt.Errorf("event %d: %w", len(out)+1, err)
		case len(out) == most:
			return nil, fmt.Errorf("more than %d events", most)
		}
		out = append(out, e)
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.Join(errors.New("more text after the array of events"), err)
	}
	return out, nil
}

func classOf(level, class string) faultClass {
	if level == "Software Failure" {
		return faultHost
	}
	if c, ok := faultClasses[class]; ok {
		return c
	}
	return faultUnknown
}

// view is how the parts of recorded faults are told where the list does not.
type view uint8

// Views.
const (
	likely  view = iota // half of the shared ones hit the box, unknown ones are like the others
	worst               // all shared and unknown ones hit the box
	kindest             // none does
)

// outagesOf assigns the faults to parts.
func outagesOf(faults []fault, v view, gpus int, rng *rand.Rand) []outage {
	var known []faultClass
	for _, f := range faults {
		if f.class != faultUnknown {
			known = append(known, f.class)
		}
	}
	out := make([]outage, len(faults))
	for i, f := range faults {
		o := outage{unit: f.unit, gpu: rng.IntN(gpus), start: f.start, end: f.end}
		class := f.class
		if class == faultUnknown {
			switch {
			case v == worst:
				class = faultShared
			case v == kindest || len(known) == 0:
				class = faultHost
			default:
				class = known[rng.IntN(len(known))]
			}
		}
		switch {
		case class == faultGPU:
			o.part = partGPU
		case class == faultShared && (v == worst || v == likely && rng.IntN(2) == 0):
			o.part = partBox
		default:
			o.part = partHost
		}
		out[i] = o
	}
	return out
}
