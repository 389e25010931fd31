package web

import (
	"cmp"
	"strings"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// kind is what the map of the pool shows of a slot: the one fact that matters
// most to somebody who looks at hundreds.
type kind int

// The kinds in the order of the legend. Of a GPU with several the gravest shows.
const (
	free kind = iota
	bound
	releasing
	held // cordoned, draining or in quarantine
	degraded
	failed
	unreachable
	empty
	kinds
)

var kindNames = [kinds]string{"free", "bound", "releasing", "held back", "degraded", "failed", "unreachable", "empty"}

var kindClasses = [kinds]string{"free", "bound", "releasing", "held", "degraded", "failed", "unreachable", "empty"}

// String names the kind for people.
func (k kind) String() string { return kindNames[k] }

// Class is the kind's name in style sheets, icons and queries.
func (k kind) Class() string { return kindClasses[k] }

// kindOf classifies a GPU.
func kindOf(g *dxpuv1.GPU) kind {
	switch g.Health {
	case dxpuv1.Health_HEALTH_UNREACHABLE:
		return unreachable
	case dxpuv1.Health_HEALTH_FAILED:
		return failed
	case dxpuv1.Health_HEALTH_DEGRADED:
		return degraded
	}
	switch {
	case g.State == dxpuv1.GPUState_GPU_STATE_RELEASING:
		return releasing
	case g.State == dxpuv1.GPUState_GPU_STATE_BOUND:
		return bound
	case g.State == dxpuv1.GPUState_GPU_STATE_UNAVAILABLE, g.Cordoned, g.Draining:
		return held
	}
	return free
}

// kindNamed finds a kind by its class; kinds: none.
func kindNamed(class string) kind {
	for k, c := range kindClasses {
		if c == class {
			return kind(k)
		}
	}
	return kinds
}

// counts is how many slots there are of each kind.
type counts [kinds]int

func (c *counts) add(o counts) {
	for k, n := range o {
		c[k] += n
	}
}

// Total counts the GPUs: every slot that is not empty.
func (c counts) Total() int {
	n := 0
	for k, m := range c {
		if kind(k) != empty {
			n += m
		}
	}
	return n
}

// legendEntry is one kind with its number.
type legendEntry struct {
	Kind  kind
	Count int
}

// Entries are all kinds that a legend shows.
func (c counts) Entries() []legendEntry {
	out := make([]legendEntry, 0, kinds)
	for k, n := range c {
		out = append(out, legendEntry{kind(k), n})
	}
	return out
}

// segment is a piece of a bar, in percent of its length.
type segment struct {
	Class string
	X, W  float64
}

// Bar is the counts as a stacked bar.
func (c counts) Bar() []segment {
	var out []segment
	total, at := float64(max(1, c.Total()+c[empty])), 0
	for k, n := range c {
		if n > 0 {
			out = append(out, segment{kind(k).Class(), 100 * float64(at) / total, 100 * float64(n) / total})
			at += n
		}
	}
	return out
}

// Words are the counts as a sentence.
func (c counts) Words() string {
	var parts []string
	for k, n := range c {
		if n > 0 {
			parts = append(parts, number(n)+" "+kind(k).String())
		}
	}
	return strings.Join(parts, ", ")
}

// about says in words what a GPU's slot shows.
func about(g *dxpuv1.GPU) string {
	s := "GPU " + g.Id + ", " + cmp.Or(g.GetDevice().GetModel(), "unknown model") + ", " + kindOf(g).String()
	if g.LeaseId != "" {
		s += ", lease " + g.LeaseId + " on " + g.HostId
	}
	if g.Cordoned {
		s += ", cordoned"
		if g.CordonReason != "" {
			s += ": " + g.CordonReason
		}
	}
	if g.HealthDetail != "" {
		s += ", " + g.HealthDetail
	}
	return s
}
