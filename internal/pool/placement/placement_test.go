package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// box makes a box of GPUs of one model: '.' is free, 'x' bound, '!' unusable.
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

func TestPlace(t *testing.T) {
	pool := []Box{
		box("n1", NVLink, "V100", "........"),
		box("p1", PCIeSwitch, "V100", "...x"),
		box("p2", PCIeSwitch, "V100", "..xx"),
		box("t1", PCIeSwitch, "T4", "....!"),
	}
	tests := []struct {
		name    string
		reserve Reserve
		req     Request
		want    string // picks, or the last sentence when none
	}{
		{"single goes to the fullest PCIe box", Reserve{}, Request{Count: 1, Model: "V100"}, "p2/0"},
		{"best fit of three", Reserve{}, Request{Count: 3, Model: "V100"}, "p1/0 p1/1 p1/2"},
		{"four fit the NVLink box only", Reserve{}, Request{Count: 4, Model: "V100"}, "n1/0 n1/1 n1/2 n1/3"},
		{"NVLink preferred", Reserve{}, Request{Count: 1, Model: "V100", NVLink: Preferred}, "n1/0"},
		{"kind", Reserve{}, Request{Count: 1, Kind: NVLink}, "n1/0"},
		{"any model: the least contested", Reserve{}, Request{Count: 1}, "p2/0"},
		{"cut over boxes", Reserve{}, Request{Count: 10, Model: "V100"}, "n1/0 n1/1 n1/2 n1/3 n1/4 n1/5 n1/6 n1/7 p2/0 p2/1"},
		{"same box required", Reserve{}, Request{Count: 10, Model: "V100", SameBox: Required}, "No single box has 10 of them free together."},
		{"spread", Reserve{}, Request{Count: 3, Model: "V100", SameBox: Avoided}, "n1/0 p1/0 p2/0"},
		{"spares held", Reserve{Count: 2}, Request{Count: 3, Model: "T4"}, "That leaves 2 that this request may have, 3 are needed."},
		{"spares used", Reserve{Count: 2}, Request{Count: 3, Model: "T4", UseSpares: true}, "t1/0 t1/1 t1/2"},
		{"spares as a fraction", Reserve{Fraction: 0.3}, Request{Count: 3, Model: "T4"}, "That leaves 2 that this request may have, 3 are needed."},
		{"unusable is not free", Reserve{}, Request{Count: 5, Model: "T4"}, "That leaves 4 that this request may have, 5 are needed."},
		{"unknown model", Reserve{}, Request{Count: 1, Model: "H100"}, `No GPU of the pool matches model "H100".`},
		{"memory", Reserve{}, Request{Count: 1, MinMemory: 32 << 30}, "No GPU of the pool matches with at least 32768 MiB of memory."},
		{"excluded", Reserve{}, Request{Count: 1, Model: "V100", Exclude: []Ref{{"p2", 0}}}, "p2/1"},
		{"joins the lease", Reserve{}, Request{Count: 1, Model: "V100", Together: []Ref{{"p1", 3}}}, "p1/0"},
		{"must join and can", Reserve{}, Request{Count: 1, Model: "V100", NVLink: Required, Together: []Ref{{"n1", 3}}}, "n1/0"},
		{
			"must join and cannot",
			Reserve{},
			Request{Count: 1, Model: "V100", SameBox: Required, Together: []Ref{{"t1", 0}}},
			"The new GPU must sit beside those that the lease has, in t1, where none is free.",
		},
		{"none", Reserve{}, Request{}, "The request is for no GPU."},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := Place(pool, tt.reserve, tt.req)
			got := d.Why[len(d.Why)-1]
			if d.OK() {
				got = join(d.Picks)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s\nwhy: %s", diff, strings.Join(d.Why, "\n"))
			}
		})
	}
}

func join(picks []Ref) string {
	var s []string
	for _, p := range picks {
		s = append(s, p.String())
	}
	return strings.Join(s, " ")
}

func TestPlaceHost(t *testing.T) {
	hosts := []Host{
		{ID: "h1", Usable: true, Slots: []HostSlot{{0, "vm0", true}, {1, "vm0", true}, {2, "vm1", true}}},
		{ID: "h2", Usable: true, Slots: []HostSlot{{0, "vm0", false}, {1, "vm0", true}}},
		{ID: "h3", Usable: false, Slots: []HostSlot{{0, "", true}, {1, "", true}, {2, "", true}}},
	}
	tests := []struct {
		name string
		req  HostRequest
		want string
	}{
		{"most free", HostRequest{Count: 1}, "h1 [0]"},
		{"named", HostRequest{Count: 1, Host: "h2"}, "h2 [1]"},
		{"domain", HostRequest{Count: 1, Host: "h1", Domain: "vm1"}, "h1 [2]"},
		{"one domain only", HostRequest{Count: 3, Host: "h1"}, "Host h1 does not have 3 free slots."},
		{"none has enough", HostRequest{Count: 3}, "No host has 3 free slots."},
		{"unusable", HostRequest{Count: 1, Host: "h3"}, "Host h3 is not reachable, cordoned, or lacks the labels."},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := PlaceHost(hosts, tt.req)
			got := d.Why[0]
			if d.OK() {
				got = fmt.Sprint(d.Host, " ", d.Slots)
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// Whatever is asked of whatever pool: picks are free, usable, distinct, match,
// respect the constraints, and leave the spares.
func TestPlaceKeepsItsPromises(t *testing.T) {
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
