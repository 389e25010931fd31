package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestPartsAgainstASearch places parts in small pools, and compares each decision with a plain
// search through all sets of GPUs. A request is refused only if no set will do, what it gets keeps
// all rules, and the numbers in a refusal are true. The index is as a new one after all changes.
func TestPartsAgainstASearch(t *testing.T) {
	const worlds = 500
	var n partCounts
	for seed := range uint64(worlds) {
		w := drawPartWorld(rand.New(rand.NewPCG(seed, 1)))
		for range 12 {
			if w.step(t, &n); t.Failed() {
				t.Fatalf("in the world of seed %d\n%s", seed, w)
			}
		}
		anew := NewPool()
		for _, b := range w.boxes {
			anew.SetBox(*b)
		}
		if got, want := describePlanes(&w.pool.shared), describePlanes(&anew.shared); !slices.Equal(got, want) {
			t.Fatalf("in the world of seed %d: the index is %v, and a new one %v", seed, got, want)
		}
	}
	t.Logf("%d requests: %d get parts of one GPU, %d of several, %d are refused", n.asked, n.one, n.several, n.refused)
	if n.one < worlds || n.several < worlds/3 || n.refused < worlds {
		t.Error("the worlds ask too little")
	}
}

type partCounts struct{ asked, one, several, refused int }

// partWorld is a pool with its boxes.
type partWorld struct {
	r     *rand.Rand
	pool  *Pool
	boxes []*Box
}

func (w *partWorld) oneIn(n int) bool { return w.r.IntN(n) == 0 }

func (w *partWorld) label() string { return []string{"", "", "", "x", "y"}[w.r.IntN(5)] }

// rules draws labels, at most one of a few of them as a rule.
func (w *partWorld) rules() (r PartRules) {
	r = PartRules{Tenant: []string{"t", "u"}[w.r.IntN(2)]}
	switch w.r.IntN(5) {
	case 0:
		r.Affinity = w.label()
	case 1:
		r.AntiAffinity = w.label()
	case 2:
		r.Exclusion = w.label()
	case 3:
		r.Affinity, r.AntiAffinity, r.Exclusion = w.label(), w.label(), w.label()
	}
	return r
}

func (w *partWorld) part() *Part {
	p := &Part{Memory: 1 + w.r.Uint64N(20), Compute: 1 + w.r.Uint32N(600)}
	if w.oneIn(2) {
		p.PartRules = w.rules()
	}
	if w.oneIn(3) {
		p.Memory, p.Compute = 10*(1+w.r.Uint64N(2)), 500
	}
	if w.oneIn(3) {
		p.Share = ShareMode(1 + w.r.IntN(3))
	}
	return p
}

func drawPartWorld(r *rand.Rand) *partWorld {
	w := &partWorld{r: r, pool: NewPool()}
	for i := range 1 + r.IntN(3) {
		b := &Box{ID: fmt.Sprint("b", i), Kind: Kind(1 + r.IntN(2)), Location: Location{Rack: fmt.Sprint("r", r.IntN(2)), Paths: Paths(r.IntN(4))}}
		b.Labels = map[string]string{"site": w.label()}
		for g := range uint32(1 + r.IntN(4)) {
			gpu := GPU{Slot: g, Model: []string{"A", "A", "B"}[r.IntN(3)], Memory: []uint64{20, 30, 31}[r.IntN(3)], Usable: !w.oneIn(8), Free: true}
			gpu.Modes = ShareModes(r.IntN(8) << 1)
			if w.oneIn(2) {
				gpu.Modes = NewShareModes(Space, Time)
			}
			if w.oneIn(6) {
				gpu.Restriction = NewRestriction(Taint{Key: "k", Effect: NoSchedule})
			}
			usable := false
			for k := range uint32(1 + r.IntN(3)) {
				s := PartSlot{Slot: 10 + 4*g + k, GPU: g, Usable: gpu.Usable && !w.oneIn(8)}
				b.Parts = append(b.Parts, s)
				usable = usable || s.Usable
			}
			if w.oneIn(10) {
				gpu.Free, gpu.Whole = false, true
			}
			if !usable {
				gpu.Modes = 0
			}
			b.GPUs = append(b.GPUs, gpu)
		}
		w.boxes = append(w.boxes, b)
		w.pool.SetBox(*b)
	}
	return w
}

func (w *partWorld) request() *Request {
	r := w.r
	q := &Request{Count: 1, Part: w.part(), UseSpares: w.oneIn(3)}
	if !w.oneIn(3) {
		q.Count += r.IntN(3)
		q.SameBox = []Preference{Indifferent, Required, Avoided}[r.IntN(3)]
	}
	if w.oneIn(4) {
		q.Model = []string{"A", "B"}[r.IntN(2)]
	}
	if w.oneIn(5) {
		q.MinMemory = 30
	}
	if w.oneIn(6) {
		q.Kind = Kind(1 + r.IntN(2))
	}
	if w.oneIn(6) {
		q.Labels = map[string]string{"site": w.label()}
	}
	if w.oneIn(4) {
		q.MaxSize = 1 + r.Uint64N(uint64(q.Count)*Whole)
	}
	if w.oneIn(2) {
		q.Tolerations = []Toleration{{Key: "k"}}
	}
	if w.oneIn(4) {
		q.Near = &Location{Rack: fmt.Sprint("r", r.IntN(2)), Paths: Paths(r.IntN(4))}
	}
	for _, g := range w.refs() {
		if w.oneIn(20) {
			q.Exclude = append(q.Exclude, g)
		}
	}
	only := w.oneIn(6)
	for _, g := range w.refs() {
		if only && !w.oneIn(3) {
			q.Only = append(q.Only, g)
		}
	}
	return q
}

func (w *partWorld) refs() (out []Ref) {
	for _, b := range w.boxes {
		for i := range b.GPUs {
			out = append(out, Ref{b.ID, b.GPUs[i].Slot})
		}
	}
	return out
}

// step makes a request and gives it its parts, or ends a part.
func (w *partWorld) step(t *testing.T, n *partCounts) {
	if w.oneIn(3) {
		w.endOne()
		w.endOne()
		return
	}
	q, reserve := w.request(), Reserve{Count: max(0, w.r.IntN(5)-2)}
	if w.oneIn(6) && q.Part.Affinity == "" && len(q.Only) == 0 {
		for _, g := range w.refs() {
			if p := w.partsOn(g); len(p) > 0 && w.oneIn(2) {
				q.Together, q.Part.Share = append(q.Together, g), p[0].Part.Share
			}
		}
	}
	asked := fmt.Sprintf("%+v of part %+v, with %d spares", *q, *q.Part, reserve.Count)
	part := *q.Part
	search := plainSearch{w, q, &part, reserve}
	d := w.pool.Place(reserve, *q)
	n.asked++
	q.Part = &part
	sets := search.sets()
	switch {
	case !d.OK() && len(sets) > 0:
		t.Errorf("%s is refused, and GPUs %v will do: %q", asked, sets[0], d.Why)
	case !d.OK():
		n.refused++
		search.checkWhy(t, asked, d.Why)
	default:
		gpus := w.gpusOf(t, d)
		slices.SortFunc(gpus, compareRefs)
		if !slices.ContainsFunc(sets, func(set []Ref) bool { return slices.Equal(set, gpus) }) || !search.mode(gpus, d.Share) {
			t.Errorf("%s gets parts of GPUs %v in %v: %q", asked, gpus, d.Share, d.Why)
		}
		if len(gpus) == 1 {
			n.one++
		} else {
			n.several++
		}
		part.Share = d.Share
		for _, at := range d.Picks {
			w.set(at, &part)
		}
	}
}

func compareRefs(a, b Ref) int {
	if a.Box != b.Box {
		return strings.Compare(a.Box, b.Box)
	}
	return int(a.Slot) - int(b.Slot)
}

// gpusOf returns the GPUs of the slots of a decision, which must be free.
func (w *partWorld) gpusOf(t *testing.T, d Decision) (out []Ref) {
	seen := map[Ref]bool{}
	for _, at := range d.Picks {
		b := w.box(at.Box)
		s := b.Parts[slices.IndexFunc(b.Parts, func(s PartSlot) bool { return s.Slot == at.Slot })]
		if !s.Usable || s.Taken || seen[at] {
			t.Errorf("slot %v is not free", at)
		}
		seen[at] = true
		out = append(out, Ref{at.Box, s.GPU})
	}
	return out
}

func (w *partWorld) box(id string) *Box {
	return w.boxes[slices.IndexFunc(w.boxes, func(b *Box) bool { return b.ID == id })]
}

func (w *partWorld) gpu(r Ref) (*Box, *GPU) {
	b := w.box(r.Box)
	return b, &b.GPUs[slices.IndexFunc(b.GPUs, func(g GPU) bool { return g.Slot == r.Slot })]
}

func (w *partWorld) partsOn(r Ref) (out []PartSlot) {
	for _, s := range w.box(r.Box).Parts {
		if s.Taken && s.GPU == r.Slot {
			out = append(out, s)
		}
	}
	return out
}

// set gives a slot a part, or takes it away.
func (w *partWorld) set(at Ref, part *Part) {
	b := w.box(at.Box)
	next := *b
	next.GPUs, next.Parts = slices.Clone(b.GPUs), slices.Clone(b.Parts)
	*b = next
	s := &b.Parts[slices.IndexFunc(b.Parts, func(s PartSlot) bool { return s.Slot == at.Slot })]
	if s.Taken, s.Part = part != nil, (Part{}); part != nil {
		s.Part = *part
	}
	gpu := Ref{at.Box, s.GPU}
	_, g := w.gpu(gpu)
	g.Free = !g.Whole && len(w.partsOn(gpu)) == 0
	w.pool.SetBox(*b)
}

// endOne ends some part.
func (w *partWorld) endOne() {
	var all []Ref
	for _, b := range w.boxes {
		for _, s := range b.Parts {
			if s.Taken {
				all = append(all, Ref{b.ID, s.Slot})
			}
		}
	}
	if len(all) > 0 {
		w.set(all[w.r.IntN(len(all))], nil)
	}
}

func (w *partWorld) String() (s string) {
	for _, b := range w.boxes {
		s += fmt.Sprintf("box %s: %s %+v %v\n", b.ID, b.Kind, b.Location, b.Labels)
		for _, g := range b.GPUs {
			s += fmt.Sprintf("  GPU %+v, modes %v\n", g, g.Modes.List())
		}
		for _, p := range b.Parts {
			s += fmt.Sprintf("  slot %+v\n", p)
		}
	}
	return s
}

// plainSearch looks for the places of a request in the boxes, without the index.
type plainSearch struct {
	*partWorld
	q       *Request
	part    *Part
	reserve Reserve
}

// sets returns the sets of GPUs that the request may get parts of.
func (s *plainSearch) sets() (out [][]Ref) {
	var may []Ref
	for _, r := range s.refs() {
		if s.mayHave(r) {
			may = append(may, r)
		}
	}
	if s.q.Count > 1 && s.part.Affinity != "" {
		return nil
	}
	for set := 1; set < 1<<len(may); set++ {
		var gpus []Ref
		for i, r := range may {
			if set>>i&1 == 1 {
				gpus = append(gpus, r)
			}
		}
		if len(gpus) == s.q.Count && s.together(gpus) {
			out = append(out, gpus)
		}
	}
	return out
}

// mayHave reports whether the request may have a part of a GPU alone.
func (s *plainSearch) mayHave(r Ref) bool {
	b, g := s.gpu(r)
	q, p := s.q, s.part
	switch {
	case !g.Usable || g.Whole || g.Modes == 0:
		return false
	case q.Model != "" && g.Model != q.Model, g.Memory < q.MinMemory, q.Kind != AnyKind && b.Kind != q.Kind:
		return false
	case slices.Contains(q.Exclude, r), slices.Contains(q.Together, r), len(q.Only) > 0 && !slices.Contains(q.Only, r):
		return false
	case g.Restriction != "" && len(q.Tolerations) == 0:
		return false
	case q.Near != nil && q.Near.Paths != 0 && b.Paths != 0 && q.Near.Paths&b.Paths == 0:
		return false
	}
	for k, v := range q.Labels {
		if b.Labels[k] != v {
			return false
		}
	}
	memory, compute, slots := g.Memory, uint32(Whole), 0
	for _, o := range s.partsOn(r) {
		memory, compute = memory-o.Part.Memory, compute-o.Part.Compute
		if !s.beside(&o.Part) {
			return false
		}
	}
	for _, o := range b.Parts {
		if o.GPU == r.Slot && o.Usable && !o.Taken {
			slots++
		}
	}
	return p.Memory <= memory && p.Compute <= compute && slots > 0 && s.follows(r)
}

// beside reports whether the part may be on one GPU with another one.
func (s *plainSearch) beside(o *Part) bool {
	p := s.part
	if (p.Exclusion != "" || o.Exclusion != "") && (p.Exclusion != o.Exclusion || p.Tenant != o.Tenant) {
		return false
	}
	return p.AntiAffinity == "" || p.AntiAffinity != o.AntiAffinity || p.Tenant != o.Tenant
}

// follows reports whether no part with the affinity is on another GPU only.
func (s *plainSearch) follows(r Ref) bool {
	some := false
	for _, other := range s.refs() {
		for _, o := range s.partsOn(other) {
			if s.part.Affinity != "" && o.Part.Affinity == s.part.Affinity && o.Part.Tenant == s.part.Tenant {
				if some = true; other == r {
					return true
				}
			}
		}
	}
	return !some
}

// together reports whether the request may have parts of some GPUs together.
func (s *plainSearch) together(gpus []Ref) bool {
	size, opened := uint64(0), map[string]int{}
	for _, r := range gpus {
		_, g := s.gpu(r)
		_, first := s.gpu(gpus[0])
		if len(s.q.Only) == 0 && g.Model != first.Model || s.q.SameBox == Required && r.Box != gpus[0].Box {
			return false
		}
		size += max(uint64(s.part.Compute), (s.part.Memory*Whole+g.Memory-1)/g.Memory)
		if len(s.partsOn(r)) == 0 {
			opened[g.Model]++
		}
	}
	if s.q.SameBox == Required && len(s.q.Together) > 0 && !slices.ContainsFunc(s.q.Together, func(o Ref) bool { return o.Box == gpus[0].Box }) {
		return false
	}
	for model, n := range opened {
		if usable, free := s.count(model); !s.q.UseSpares && n > free-min(s.reserve.Count, usable, free) {
			return false
		}
	}
	return (s.q.MaxSize == 0 || size <= s.q.MaxSize) && (s.mode(gpus, Space) || s.mode(gpus, Time) || s.mode(gpus, Partition))
}

func (s *plainSearch) count(model string) (usable, free int) {
	for _, r := range s.refs() {
		if _, g := s.gpu(r); g.Model == model && g.Usable {
			usable++
			if g.Free {
				free++
			}
		}
	}
	return usable, free
}

// mode reports whether all of some GPUs can be shared in a mode, and the request admits it.
func (s *plainSearch) mode(gpus []Ref, m ShareMode) bool {
	return (s.part.Share == AnyShare || s.part.Share == m) && !slices.ContainsFunc(gpus, func(r Ref) bool {
		_, g := s.gpu(r)
		if on := s.partsOn(r); len(on) > 0 {
			return on[0].Part.Share != m
		}
		return !slices.Contains(g.Modes.List(), m)
	})
}

// checkWhy checks the numbers of GPUs in a refusal.
func (s *plainSearch) checkWhy(t *testing.T, asked string, why []string) {
	if len(why) == 0 {
		t.Errorf("%s is refused without a reason", asked)
	}
	if without := (plainSearch{s.partWorld, s.q, s.part, Reserve{}}); len(without.sets()) > 0 && !strings.Contains(strings.Join(why, " "), "held back as spares") {
		t.Errorf("%s is refused for the spares, but: %q", asked, why)
	}
	shared := 0
	for _, r := range s.refs() {
		if _, g := s.gpu(r); !g.Whole && len(s.partsOn(r)) > 0 {
			shared++
		}
	}
	for _, line := range why {
		var n, most int
		var word, model string
		switch {
		case strings.Contains(line, "that parts share: ") && !strings.Contains(why[0], "must join them"):
			if _, err := fmt.Sscanf(line, "Of %d %s that", &n, &word); err != nil || n != shared {
				t.Errorf("%s: %d GPUs are shared: %q", asked, shared, line)
			}
		case strings.Contains(line, " room for one, at most "):
			_, err := fmt.Sscanf(strings.NewReplacer(" GPUs have", "", " GPU has", "").Replace(line), "%d room for one, at most %d of", &n, &most)
			if all, inBox := s.room(); err != nil || n != all || most != inBox {
				t.Errorf("%s: %d GPUs have room, %d of them in one box: %q", asked, all, inBox, line)
			}
		case strings.HasPrefix(line, "Model "):
			if _, err := fmt.Sscanf(line, "Model %1s: %d of %d usable", &model, &n, &most); err != nil {
				t.Errorf("%q: %v", line, err)
			}
			if usable, free := s.count(model); n != free || most != usable {
				t.Errorf("%s: %d of %d usable GPUs are free: %q", asked, free, usable, line)
			}
		}
	}
}

// room returns the number of GPUs that may have a part, and that of one box.
func (s *plainSearch) room() (all, most int) {
	in := map[string]int{}
	for _, r := range s.refs() {
		if s.mayHave(r) && (s.mode([]Ref{r}, Space) || s.mode([]Ref{r}, Time) || s.mode([]Ref{r}, Partition)) {
			all++
			in[r.Box]++
			most = max(most, in[r.Box])
		}
	}
	return all, most
}
