package placement

import (
	"slices"
	"sort"
	"strings"
	"testing"
)

// sharing returns the GPUs that parts share; with the affinity of the request, or all.
func (w *refusing) sharing(affine bool) (out []Ref) {
	for i := range w.boxes {
		b := &w.boxes[i]
		for j := range b.GPUs {
			g := &b.GPUs[j]
			if slices.ContainsFunc(b.Parts, func(s PartSlot) bool {
				same := s.Part.Affinity == w.req.Part.Affinity && s.Part.Tenant == w.req.Part.Tenant
				return s.Taken && s.GPU == g.Slot && !g.Whole && (!affine || same)
			}) {
				out = append(out, Ref{b.ID, g.Slot})
			}
		}
	}
	return out
}

// mustJoin reports whether parts have the affinity of the request already.
func (w *refusing) mustJoin() bool { return w.req.Part.Affinity != "" && len(w.sharing(true)) > 0 }

// checkShared checks what is said of the GPUs that parts share.
func (w *refusing) checkShared(t *testing.T, s, pieces string, n int, things []thing, affine bool) {
	of := w.sharing(affine)
	if len(of) != n {
		t.Errorf("%q, want %d", s, len(of))
	}
	want, p := map[string]int{}, w.req.Part
	for _, r := range of {
		b, g := w.boxes[slices.IndexFunc(w.boxes, func(b Box) bool { return b.ID == r.Box })], w.gpu(r)
		l := slices.DeleteFunc(w.lacksOf(&b, g, things), func(s string) bool { return s == "cannot be divided" || s == "too little memory" })
		if g.Memory < w.req.MinMemory {
			l = append(l, "too little memory")
		}
		if w.kept(&b, g) {
			l = append(l, "kept for")
		}
		memory, compute, slots := g.Memory, uint32(Whole), 2
		averse, exclusion, tenant, mode := false, "", "", AnyShare
		for _, o := range b.Parts {
			if !o.Taken || o.GPU != g.Slot {
				continue
			}
			memory, compute, slots = memory-o.Part.Memory, compute-o.Part.Compute, slots-1
			averse = averse || p.AntiAffinity != "" && o.Part.AntiAffinity == p.AntiAffinity && o.Part.Tenant == p.Tenant
			if exclusion, mode = o.Part.Exclusion, o.Part.Share; exclusion != "" {
				tenant = o.Part.Tenant
			}
		}
		mine := ""
		if p.Exclusion != "" {
			mine = p.Tenant
		}
		for what, is := range map[string]bool{
			"the compute": compute < p.Compute, "the memory": memory < p.Memory, "no slot": slots == 0 && g.Usable, "same anti-affinity": averse,
			"another exclusion": exclusion != p.Exclusion || tenant != mine, "in another mode": p.Share != AnyShare && mode != p.Share,
		} {
			if is {
				l = append(l, what)
			}
		}
		if len(l) == 0 {
			t.Errorf("%q, and GPU %s does", s, r)
		}
		sort.Strings(l)
		want[strings.Join(l, "|")]++
	}
	w.checkPieces(t, pieces, want)
}
