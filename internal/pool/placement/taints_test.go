package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var effects = map[string]Effect{"": AnyEffect, "NoSchedule": NoSchedule, "NoExecute": NoExecute, "Local": Local}

// parseTaint reads KEY:VALUE:EFFECT.
func parseTaint(s string) Taint {
	key, rest, _ := strings.Cut(s, ":")
	value, effect, _ := strings.Cut(rest, ":")
	return Taint{key, value, effects[effect]}
}

// parseTolerations reads KEY, KEY:VALUE or KEY:VALUE:EFFECT; "*" is any key.
func parseTolerations(values []string) []Toleration {
	var out []Toleration
	for _, v := range values {
		t := parseTaint(v)
		o := Toleration{Key: t.Key, Value: t.Value, AnyValue: t.Value == "" && t.Effect != Local, Effect: t.Effect}
		if o.Key == "*" {
			o.Key = ""
		}
		out = append(out, o)
	}
	return out
}

func drawTaint(t *rapid.T) Taint {
	return Taint{
		rapid.SampledFrom([]string{"k", "l"}).Draw(t, "key"), rapid.SampledFrom([]string{"", "v"}).Draw(t, "value"),
		rapid.SampledFrom([]Effect{NoSchedule, NoExecute, Local}).Draw(t, "effect"),
	}
}

func drawRestriction(t *rapid.T) Restriction {
	var taints []Taint
	for range rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "taints") {
		taints = append(taints, drawTaint(t))
	}
	return NewRestriction(taints...)
}

func drawTolerations(t *rapid.T) []Toleration {
	var out []Toleration
	for range rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "tolerations") {
		out = append(out, Toleration{
			rapid.SampledFrom([]string{"k", "l", ""}).Draw(t, "key"), rapid.SampledFrom([]string{"", "v"}).Draw(t, "value"),
			rapid.Bool().Draw(t, "any"), rapid.SampledFrom([]Effect{AnyEffect, AnyEffect, NoSchedule}).Draw(t, "effect"),
		})
	}
	return out
}

// TestTolerations has the rules of Kubernetes for one taint.
func TestTolerations(t *testing.T) {
	taint := Taint{"gpu", "ml", NoSchedule}
	for _, c := range []struct {
		by   Toleration
		want bool
	}{
		{Toleration{Key: "gpu", Value: "ml"}, true},
		{Toleration{Key: "gpu", Value: "ml", Effect: NoSchedule}, true},
		{Toleration{Key: "gpu", Value: "ml", Effect: NoExecute}, false},
		{Toleration{Key: "gpu", Value: "db"}, false},
		{Toleration{Key: "gpu"}, false}, // the empty value is a value
		{Toleration{Key: "gpu", AnyValue: true}, true},
		{Toleration{Key: "cpu", AnyValue: true}, false},
		{Toleration{AnyValue: true}, true},
		{Toleration{Value: "ml"}, false}, // no key
	} {
		if got := c.by.Tolerates(taint); got != c.want {
			t.Errorf("%+v tolerates %s: %v, want %v", c.by, taint, got, c.want)
		}
	}
	if !NewRestriction(taint, Taint{"a", "", NoExecute}).toleratedBy([]Toleration{{Key: "a"}, {Key: "gpu", AnyValue: true}}) {
		t.Error("two tolerations do not add up")
	}
	if NewRestriction(taint, Taint{"a", "", NoExecute}).toleratedBy([]Toleration{{Key: "gpu", AnyValue: true}}) {
		t.Error("one of two taints is tolerated, and the request may use the GPU")
	}
}

// TestRestrictionsAreComparable checks that the order of taints does not matter.
func TestRestrictionsAreComparable(t *testing.T) {
	a, b := Taint{"a", "", NoSchedule}, Taint{"b", "1", NoExecute}
	if NewRestriction(a, b) != NewRestriction(b, a, b) || NewRestriction(a) == NewRestriction(b) || NewRestriction() != "" {
		t.Error("equal sets of taints differ, or different ones are equal")
	}
}

// TestTaintsAddOneView checks that decisions of requests with the same tolerations share
// one view, however many boxes have taints: no decision builds it again.
func TestTaintsAddOneView(t *testing.T) {
	p := NewPool()
	for i := range 400 {
		b := box(fmt.Sprintf("b%03d", i), PCIeSwitch, "A", "....")
		for j := range b.GPUs {
			if i%2 == 0 {
				b.GPUs[j].Restriction = NewRestriction(Taint{"gpu", fmt.Sprint(i % 8), NoSchedule})
			}
		}
		p.SetBox(b)
	}
	tolerant := []Toleration{{Key: "gpu", Value: "2"}, {Key: "gpu", Value: "4"}}
	for range 100 {
		p.Place(Reserve{}, Request{Count: 1})
		p.Place(Reserve{}, Request{Count: 1, Tolerations: tolerant})
		p.Place(Reserve{}, Request{Count: 1, Tolerations: []Toleration{{AnyValue: true}}})
	}
	if n := len(p.models["A"].views); n != 3 { // all, no taint, two of them
		t.Errorf("%d views, want 3", n)
	}
	if d := p.Place(Reserve{}, Request{Count: 801, SameBox: Indifferent}); d.OK() {
		t.Error("a request without tolerations has GPUs with taints")
	}
}

// TestGatherLeavesTaints checks that a request which waits holds no GPU that it does not
// tolerate.
func TestGatherLeavesTaints(t *testing.T) {
	p := NewPool()
	b := box("b1", PCIeSwitch, "A", "..xx")
	b.GPUs[0].Restriction = NewRestriction(Taint{"k", "", NoSchedule})
	p.SetBox(b)
	hold, ok := p.gather(Reserve{}, Request{Count: 3, SameBox: Required})
	if !ok || len(hold) != 1 || hold[0].Slot != 1 {
		t.Errorf("%v, %v", hold, ok)
	}
}

// A plan and a sharing agent are called that, and not taints.
func TestObstaclesAreCalledWhatTheyAre(t *testing.T) {
	plan, other := Taint{"maintenance", "m-1", Planned}, Taint{"maintenance", "m-2", Planned}
	ml, burn := Taint{"team", "ml", NoSchedule}, Taint{"burn-in", "", NoExecute}
	for _, c := range []struct {
		of         []Restriction
		tolerating []Toleration
		want       string
	}{
		{[]Restriction{NewRestriction(plan)}, nil, "planned maintenance before which the request does not end: m-1"},
		{[]Restriction{NewRestriction(other), NewRestriction(plan, other)}, nil, "planned maintenance before which the request does not end: m-1, m-2"},
		{[]Restriction{NewRestriction(ml, plan)}, []Toleration{{Key: "team", Value: "ml"}}, "planned maintenance before which the request does not end: m-1"},
		{
			[]Restriction{NewRestriction(ml, burn, plan), NewRestriction(ml)},
			nil,
			"taints that the request does not tolerate: burn-in:NoExecute, team=ml:NoSchedule; team=ml:NoSchedule; or planned maintenance before which the request does not end: m-1",
		},
		{[]Restriction{NewRestriction(Taint{"local", "", Local})}, nil, "a sharing agent, which serves leases that name its host"},
	} {
		if got := obstacles(slices.Values(c.of), c.tolerating); got != c.want {
			t.Errorf("%v with %v: %s, want %s", c.of, c.tolerating, got, c.want)
		}
	}
	box := Box{ID: "b1", GPUs: []GPU{{Usable: true, Free: true, Restriction: NewRestriction(plan)}}}
	if got := whyNotNamed(&box, &box.GPUs[0], &Request{}); got != "has planned maintenance before which the request does not end: m-1" {
		t.Errorf("a GPU by name: %s", got)
	}
}
