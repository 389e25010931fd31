package capacity

import (
	"time"

	"github.com/dxpu-project/dxpu/internal/quantile"
)

// Part is the time of one part of an attach, over all attaches.
type Part struct {
	Name  string        `json:"name"`
	P50NS time.Duration `json:"p50_ns"`
	P99NS time.Duration `json:"p99_ns"`
}

// partsOf splits attaches by the timelines of the bindings. All times come from the
// clock of this machine.
func partsOf(all []*attachment) []Part {
	var out []Part
	add := func(name string, took func(*attachment) time.Duration) {
		var v []time.Duration
		for _, a := range all {
			v = append(v, took(a))
		}
		out = append(out, partOf(name, v))
	}
	created := func(a *attachment) time.Time { return a.step("created", "") }
	ready := func(a *attachment) time.Time { return a.step("ready", "") }
	linked := func(a *attachment) time.Time { return a.step("link_up", "host") }
	visible := func(a *attachment) time.Time { return a.step("enumerated", "host") }
	attached := func(a *attachment) time.Time { return a.step("attached", "") }
	add("call until the manager begins", func(a *attachment) time.Duration { return created(a).Sub(a.called) })
	add("decision, encoding, answer", func(a *attachment) time.Duration { return a.answered.Sub(created(a)) - a.commit })
	add("store commit", func(a *attachment) time.Duration { return a.commit })
	add("box prepares, from the decision on", func(a *attachment) time.Duration { return ready(a).Sub(created(a)) })
	add("link up", func(a *attachment) time.Duration { return linked(a).Sub(ready(a)) })
	add("host attaches: enumeration", func(a *attachment) time.Duration { return visible(a).Sub(linked(a)) })
	add("confirmation by the manager", func(a *attachment) time.Duration { return attached(a).Sub(visible(a)) })
	add("from the call to the device on the host", func(a *attachment) time.Duration { return visible(a).Sub(a.called) })
	add("from the call to the event that it is active", func(a *attachment) time.Duration { return a.active.Sub(a.called) })
	return out
}

func partOf(name string, v []time.Duration) Part {
	return Part{name, quantile.Of(v, 0.5), quantile.Of(v, 0.99)}
}
