package web

import (
	"cmp"
	"strings"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// kind is the state of a slot in the map of the pool.
type kind int

// The kinds, in the legend's order. Of several, kindOf returns the most severe.
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

var kindClasses = [kinds]string{"free", "bound", "releasing", "held", "degraded", "failed", "unreachable", "empty"}

// String returns the name of the kind in texts.
func (k kind) String() string {
	if k == held {
		return "out of service"
	}
	return k.Class()
}

// Class returns the name of the kind in style sheets, icons and queries.
func (k kind) Class() string { return kindClasses[k] }

// kindOf returns the kind of a slot with a GPU.
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
	case g.State == dxpuv1.GPUState_GPU_STATE_BOUND, g.State == dxpuv1.GPUState_GPU_STATE_SHARED:
		return bound
	case g.State == dxpuv1.GPUState_GPU_STATE_UNAVAILABLE, g.Cordoned, g.Draining:
		return held
	}
	return free
}

// kindNamed returns the kind with a class, or kinds if there is none.
func kindNamed(class string) kind {
	for k, c := range kindClasses {
		if c == class {
			return kind(k)
		}
	}
	return kinds
}

// counts is the number of slots of each kind.
type counts [kinds]int

func (c *counts) add(o counts) {
	for k, n := range o {
		c[k] += n
	}
}

// Total returns the number of GPUs, which is that of slots that are not empty.
func (c counts) Total() int {
	n := 0
	for k, m := range c {
		if kind(k) != empty {
			n += m
		}
	}
	return n
}

// legendEntry is a kind and its number of slots.
type legendEntry struct {
	Kind  kind
	Count int
}

// Entries returns the entries of the legend.
func (c counts) Entries() []legendEntry {
	out := make([]legendEntry, 0, kinds)
	for k, n := range c {
		out = append(out, legendEntry{kind(k), n})
	}
	return out
}

// segment is a part of a bar: offset and width in percent of its length.
type segment struct {
	Class string
	X, W  float64
}

// Bar returns the counts as a stacked bar.
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

// Words returns the counts as text, such as "3 free, 5 bound".
func (c counts) Words() string {
	var parts []string
	for k, n := range c {
		if n > 0 {
			parts = append(parts, number(n)+" "+kind(k).String())
		}
	}
	return strings.Join(parts, ", ")
}

// describeGPU describes a GPU in words, for its slot in the map.
func describeGPU(g *dxpuv1.GPU) string {
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
