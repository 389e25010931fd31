package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// box returns a box of GPUs of one model: '.' is free, 'x' bound, '!' unusable.
func box(id string, kind Kind, model, gpus string) Box {
	b := Box{ID: id, Kind: kind}
	for i, c := range gpus {
		g := GPU{Slot: uint32(i), Model: model, Memory: 16 << 30, Usable: c != '!', Free: c == '.'}
		if kind == NVLink {
			g.Domain = "nv0"
		}
		b.GPUs = append(b.GPUs, g)
	}
	return b
}

func join(picks []Ref) string {
	var s []string
	for _, p := range picks {
		s = append(s, p.String())
	}
	return strings.Join(s, " ")
}

// For any pool and request, the GPUs picked are free, usable, distinct, and meet
// the constraints.
func TestPlaceMeetsConstraints(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pool := drawPool(t)
		reserve := Reserve{Count: rapid.IntRange(0, 3).Draw(t, "spares")}
		req := Request{
			Count:     rapid.IntRange(1, 6).Draw(t, "count"),
			Model:     rapid.SampledFrom([]string{"", "A", "B"}).Draw(t, "model"),
			Kind:      Kind(rapid.IntRange(0, 2).Draw(t, "kind")),
			NVLink:    Preference(rapid.IntRange(0, 3).Draw(t, "nvlink")),
			SameBox:   Preference(rapid.IntRange(0, 3).Draw(t, "same")),
			UseSpares: rapid.Bool().Draw(t, "use"),
		}
		d := Place(pool, reserve, req)
		if len(d.Why) == 0 {
			t.Fatal("no explanation")
		}
		if !d.OK() {
			return
		}
		if len(d.Picks) != req.Count {
			t.Fatalf("%d picks, want %d", len(d.Picks), req.Count)
		}
		seen := map[Ref]bool{}
		model := ""
		for _, p := range d.Picks {
			b := pool[slices.IndexFunc(pool, func(b Box) bool { return b.ID == p.Box })]
			g := b.GPUs[p.Slot]
			switch {
			case seen[p]:
				t.Fatalf("%v picked twice", p)
			case !g.Free || !g.Usable:
				t.Fatalf("%v is not free and usable", p)
			case req.Model != "" && g.Model != req.Model, model != "" && g.Model != model:
				t.Fatalf("%v is a %s", p, g.Model)
			case req.Kind != AnyKind && b.Kind != req.Kind, req.NVLink == Required && b.Kind != NVLink:
				t.Fatalf("%v sits in a %v box", p, b.Kind)
			case req.SameBox == Required && p.Box != d.Picks[0].Box:
				t.Fatalf("two boxes: %v", d.Picks)
			}
			seen[p], model = true, g.Model
		}
	})
}

func drawPool(t *rapid.T) []Box {
	n := rapid.IntRange(0, 5).Draw(t, "boxes")
	pool := make([]Box, n)
	for i := range pool {
		pool[i] = box(fmt.Sprintf("b%d", i), Kind(rapid.IntRange(1, 2).Draw(t, "kind")),
			rapid.SampledFrom([]string{"A", "B"}).Draw(t, "model"),
			rapid.StringMatching(`[.x!]{0,8}`).Draw(t, "gpus"))
	}
	return pool
}

func BenchmarkPlace(b *testing.B) {
	var pool []Box
	for i := range 64 {
		pool = append(pool, box(fmt.Sprintf("b%02d", i), Kind(1+i%2), "V100", "...xx..."))
	}
	b.ReportAllocs()
	for b.Loop() {
		if d := Place(pool, Reserve{Count: 4}, Request{Count: 1, Model: "V100"}); !d.OK() {
			b.Fatal(d.Why)
		}
	}
}
