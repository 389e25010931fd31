package placement

import (
	"fmt"
	"slices"
	"strings"
)

// A taint keeps requests away from a GPU or a host, except those that tolerate it, as in
// Kubernetes. The taints of a GPU, with those of its box, are one comparable value, a
// Restriction: there are few different ones in a pool, whatever its size. So the index
// finds out once for each restriction whether a request tolerates it, and not for each GPU.

// Effect is what a taint does to requests that do not tolerate it.
type Effect uint8

// Effects.
const (
	AnyEffect  Effect = iota // of a toleration only
	NoSchedule               // they get no GPU there
	NoExecute                // and leave those that they have
	// Planned keeps all requests away but those that name the taint: something is planned
	// for the GPU, and only a request that ends before it names the taint.
	Planned
	// Local keeps all requests away but those that name the taint: only those for the host
	// on the same machine do.
	Local
)

// String returns the name of the effect in Kubernetes.
func (e Effect) String() string {
	switch e {
	case NoSchedule:
		return "NoSchedule"
	case NoExecute:
		return "NoExecute"
	case Planned:
		return "Planned"
	case Local:
		return "Local"
	default:
		return ""
	}
}

// Taint marks a GPU or a host. Its texts are free of ',', ':' and '='.
type Taint struct {
	Key, Value string
	Effect     Effect
}

// String returns "KEY=VALUE:EFFECT", or "KEY:EFFECT".
func (t Taint) String() string {
	if t.Value == "" {
		return fmt.Sprintf("%s:%s", t.Key, t.Effect)
	}
	return fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect)
}

// Toleration lets a request use what has a taint.
type Toleration struct {
	Key      string // empty: any key, if AnyValue is set
	Value    string
	AnyValue bool
	Effect   Effect // AnyEffect: all
}

// Tolerates reports whether the toleration is for a taint.
func (o Toleration) Tolerates(t Taint) bool {
	if t.Effect == Planned || t.Effect == Local {
		return o == t.named()
	}
	if o.Effect != AnyEffect && o.Effect != t.Effect || o.Key == "" && !o.AnyValue {
		return false
	}
	return (o.Key == "" || o.Key == t.Key) && (o.AnyValue || o.Value == t.Value)
}

// named returns the toleration of a taint that must be named.
func (t Taint) named() Toleration { return Toleration{Key: t.Key, Value: t.Value, Effect: t.Effect} }

// Tolerated reports whether one of some tolerations is for a taint.
func Tolerated(t Taint, by []Toleration) bool {
	return slices.ContainsFunc(by, func(o Toleration) bool { return o.Tolerates(t) })
}

// Restriction is a set of taints in a form that can be compared: in order, as in
// "a=b:NoSchedule, c:NoExecute". The empty one is no taint.
type Restriction string

// NewRestriction returns the restriction of some taints, whose order does not matter.
func NewRestriction(taints ...Taint) Restriction {
	words := make([]string, len(taints))
	for i, t := range taints {
		words[i] = t.String()
	}
	slices.Sort(words)
	return Restriction(strings.Join(slices.Compact(words), ", "))
}

// taints returns the taints of the set.
func (r Restriction) taints() []Taint {
	var out []Taint
	for word := range strings.SplitSeq(string(r), ", ") {
		word, effect, _ := strings.Cut(word, ":")
		t := Taint{Effect: NoSchedule}
		t.Key, t.Value, _ = strings.Cut(word, "=")
		for _, e := range []Effect{NoExecute, Planned, Local} {
			if effect == e.String() {
				t.Effect = e
			}
		}
		out = append(out, t)
	}
	return out
}

// toleratedBy reports whether a request with some tolerations may use what is restricted.
func (r Restriction) toleratedBy(tolerations []Toleration) bool {
	if r == "" {
		return true
	}
	return len(tolerations) > 0 && !slices.ContainsFunc(r.taints(), func(t Taint) bool { return !Tolerated(t, tolerations) })
}

// local reports whether only requests for the host on the same machine may use what is
// restricted.
func (r Restriction) local() bool { return strings.Contains(string(r), ":"+Local.String()) }

// tolerates reports whether a request may use a GPU with a restriction. A view asks with
// the restrictions that it contains.
func (r *Request) tolerates(x Restriction) bool {
	if r.contains != nil {
		return r.contains.has(x)
	}
	return x.toleratedBy(r.Tolerations)
}

// restrictionSet is the restrictions of the GPUs in a view, beside those without one.
// All is every restriction, and key the name of the set.
type restrictionSet struct {
	all bool
	of  map[Restriction]bool
	key string
}

func (s *restrictionSet) has(x Restriction) bool { return s.all || x == "" || s.of[x] }

// toleratedSet returns those of the restrictions of a model that a request tolerates.
func (m *modelIndex) toleratedSet(req *Request) restrictionSet {
	if len(m.restrictions) == 0 {
		return restrictionSet{all: true}
	}
	all := true
	of := map[Restriction]bool{}
	for r := range m.restrictions {
		if r.toleratedBy(req.Tolerations) {
			of[r] = true
		} else {
			all = false
		}
	}
	if all {
		return restrictionSet{all: true}
	}
	names := make([]string, 0, len(of))
	for r := range of {
		names = append(names, string(r))
	}
	slices.Sort(names)
	return restrictionSet{of: of, key: "some\n" + strings.Join(names, "\n")}
}

// refused is how many GPUs, or hosts, have taints that a request does not tolerate.
type refused map[Restriction]int

func (f refused) add(r Restriction, n int) refused {
	if f == nil {
		f = refused{}
	}
	f[r] += n
	return f
}

// Restrictions returns the number of different sets of taints that usable GPUs have.
func (p *Pool) Restrictions() int {
	all := map[Restriction]bool{}
	for _, m := range p.models {
		for r := range m.restrictions {
			all[r] = true
		}
	}
	return len(all)
}

// Restrictions returns the number of different sets of taints that usable hosts have.
func (h *Hosts) Restrictions() int {
	n := len(h.restrictions)
	if h.restrictions[""] > 0 {
		n--
	}
	return n
}
