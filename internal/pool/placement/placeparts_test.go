package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// leaseSeveral places parts for one lease and keeps them. It returns their GPUs.
func (p *partPool) leaseSeveral(reserve Reserve, req Request) (gpus []Ref, d Decision) {
	d = p.Place(reserve, req)
	for _, at := range d.Picks {
		part := *req.Part
		part.Share = d.Share
		gpu := p.set(at, &part)
		p.held = append(p.held, heldPart{at, gpu, part})
		gpus = append(gpus, gpu)
	}
	return gpus, d
}

func several(n int, memory uint64, compute uint32) Request {
	return Request{Count: n, Part: &Part{Memory: memory, Compute: compute}}
}

func wantWhy(t *testing.T, d Decision, words string) {
	t.Helper()
	if why := strings.Join(d.Why, " "); d.OK() || !strings.Contains(why, words) {
		t.Errorf("picks %v, why %q lacks %q", d.Picks, why, words)
	}
}

func TestSeveralParts(t *testing.T) {
	p := newPartPool(2, 8)
	first, d := p.leaseSeveral(Reserve{}, several(2, 8<<30, 300))
	if len(first) != 2 || first[0] == first[1] || first[0].Box != first[1].Box {
		t.Fatalf("GPUs %v: %v", first, d.Why)
	}
	second, _ := p.leaseSeveral(Reserve{}, several(2, 8<<30, 300))
	if !slices.Equal(first, second) {
		t.Errorf("%v, and %v before: the free GPUs are not whole any more", second, first)
	}
	four, d := p.leaseSeveral(Reserve{}, several(4, 1<<30, 500))
	if len(boxesOf(four)) != 1 || four[0].Box == first[0].Box {
		t.Errorf("four with half of the compute are on %v: %v", four, d.Why)
	}
	p.boxes["b0"].Labels, p.boxes["b1"].Labels = map[string]string{"room": "a"}, map[string]string{"room": "b"}
	for _, b := range p.boxes {
		p.SetBox(*b)
	}
	for _, room := range []string{"a", "b"} {
		r := several(2, 1, 1)
		r.Labels = map[string]string{"room": room}
		if d := p.Place(Reserve{}, r); !d.OK() || p.boxes[d.Picks[0].Box].Labels["room"] != room {
			t.Errorf("label %s: %v", room, d)
		}
	}
}

func TestSeveralPartsOverBoxes(t *testing.T) {
	p := newPartPool(2, 8)
	for range 4 {
		p.leaseSeveral(Reserve{}, several(1, 60<<30, 600))
	}
	// The four GPUs of one box have 40 % of the compute left.
	req := several(5, 8<<30, 300)
	gpus, d := p.leaseSeveral(Reserve{}, req)
	if len(gpus) != 5 || len(boxesOf(gpus)) != 2 || !strings.Contains(d.Why[0], "split over 2 boxes") {
		t.Errorf("GPUs %v: %v", gpus, d.Why)
	}
	req.SameBox = Required
	wantWhy(t, p.Place(Reserve{}, req), "on each of 5 GPUs of one box. 4 GPUs have room for one, at most 4 of them in one box.")
	wantWhy(t, p.Place(Reserve{}, several(9, 1, 1)), "on each of 9 GPUs. 8 GPUs have room for one")
	if why := strings.Join(p.Place(Reserve{}, several(9, 1, 1)).Why, " "); strings.Contains(why, "Of 5 GPUs") {
		t.Errorf("nothing keeps a part from any GPU: %q", why)
	}
	spread := several(2, 1<<30, 100)
	spread.SameBox = Avoided
	if gpus, _ := p.leaseSeveral(Reserve{}, spread); len(boxesOf(gpus)) != 2 {
		t.Errorf("spread over %v", gpus)
	}
}

// The parts of a lease are on different GPUs also when one of them is replaced.
func TestPartBesideOthers(t *testing.T) {
	p := newPartPool(2, 8)
	gpus, _ := p.leaseSeveral(Reserve{}, several(2, 8<<30, 300))
	req := several(1, 8<<30, 300)
	req.Together = gpus[:1]
	req.Exclude = gpus[1:]
	d := p.Place(Reserve{}, req)
	if !d.OK() {
		t.Fatal(d.Why)
	}
	if at := p.gpuOfSlot(d.Picks[0]); at.Box != gpus[0].Box || slices.Contains(gpus, at) {
		t.Errorf("the replacement is on %s, beside %v", at, gpus)
	}
	box := p.boxes[gpus[0].Box]
	for i := range box.GPUs {
		box.GPUs[i].Usable = false
	}
	p.SetBox(*box)
	if d := p.Place(Reserve{}, req); !d.OK() || d.Picks[0].Box == gpus[0].Box {
		t.Errorf("in another box: %v", d)
	}
	req.SameBox = Required
	wantWhy(t, p.Place(Reserve{}, req), "other than that of the lease")
}

func TestSparesAreHeldBackFromSeveralParts(t *testing.T) {
	p := newPartPool(1, 8)
	keep := Reserve{Count: 2}
	if gpus, d := p.leaseSeveral(keep, several(3, 1, 1)); len(gpus) > 0 {
		t.Errorf("3 of 4 GPUs, of which 2 are spares: %v", d.Why)
	}
	if gpus, d := p.leaseSeveral(keep, several(2, 1, 1)); len(gpus) != 2 {
		t.Errorf("2 of 4: %v", d.Why)
	}
	if gpus, d := p.leaseSeveral(keep, several(2, 1, 1)); len(gpus) != 2 {
		t.Errorf("2 beside others: %v", d.Why)
	}
	req := several(4, 1, 1)
	req.UseSpares = true
	if gpus, d := p.leaseSeveral(keep, req); len(gpus) != 4 {
		t.Errorf("with the spares: %v", d.Why)
	}
}

// A machine's own GPUs take parts if its agent gives a lease several of them.
func TestSeveralPartsOfNamedGPUs(t *testing.T) {
	p := newPartPool(2, 8)
	own := []Ref{{"b1", 0}, {"b1", 1}, {"b1", 2}, {"b1", 3}}
	req := several(2, 8<<30, 300)
	req.Only, req.Box = own, "b1"
	wantWhy(t, p.Place(Reserve{}, req), "upgrade it")
	req.Several = true
	if gpus, d := p.leaseSeveral(Reserve{}, req); len(gpus) != 2 || gpus[0].Slot >= gpus[1].Slot || gpus[0].Box != "b1" || gpus[1].Box != "b1" {
		t.Errorf("GPUs %v: %v", gpus, d.Why)
	}
	req.Count = 5
	wantWhy(t, p.Place(Reserve{}, req), "on each of 5 GPUs")
	req.Count, req.Box, req.Only = 2, "", []Ref{{"b0", 3}, {"b1", 3}}
	if gpus, d := p.leaseSeveral(Reserve{}, req); !slices.Equal(gpus, req.Only) {
		t.Errorf("GPUs %v: %v", gpus, d.Why)
	}
	req.Part = &Part{Memory: 79 << 30, Compute: 300}
	wantWhy(t, p.Place(Reserve{}, req), "GPU b0/3 lacks the memory")
}

// TestSeveralPartsNeverExceedAGPU compares decisions on several parts with brute force.
func TestSeveralPartsNeverExceedAGPU(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPartPool(3, 4)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			if len(p.held) > 0 && rapid.IntRange(0, 3).Draw(t, "end") == 0 {
				i := rapid.IntRange(0, len(p.held)-1).Draw(t, "which")
				p.set(p.held[i].at, nil)
				p.held = slices.Delete(p.held, i, i+1)
				continue
			}
			part := drawPart(t)
			req := Request{Count: rapid.IntRange(2, 6).Draw(t, "n"), Part: &part, SameBox: Preference(rapid.IntRange(0, 3).Draw(t, "box"))}
			inBox, inAll := p.mostParts(part)
			possible := req.Count <= inBox || req.SameBox != Required && req.Count <= inAll
			gpus, d := p.leaseSeveral(Reserve{}, req)
			if d.OK() != possible {
				t.Fatalf("%d of %+v (%d): possible %v, of %d in a box and %d in all: %v", req.Count, part, req.SameBox, possible, inBox, inAll, d)
			}
			boxes := len(boxesOf(gpus))
			if slices.SortFunc(gpus, func(a, b Ref) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) }); len(slices.Compact(slices.Clone(gpus))) != len(gpus) {
				t.Fatalf("two parts of a lease are on one GPU: %v", gpus)
			}
			if d.OK() && req.SameBox != Avoided && req.Count <= inBox && boxes != 1 {
				t.Fatalf("%v: a box has room for all %d", gpus, req.Count)
			}
			p.check(t)
		}
	})
}

// mostParts returns on how many GPUs of one box, and of the pool, there is room for a part
// in one mode.
func (p *partPool) mostParts(part Part) (inBox, inAll int) {
	for _, mode := range part.modes() {
		if mode == Partition { // no GPU of these boxes has it
			continue
		}
		part.Share = mode
		costs, by := p.costs(&part), map[string]int{}
		for at := range costs {
			by[at.Box]++
			inBox = max(inBox, by[at.Box])
		}
		inAll = max(inAll, len(costs))
	}
	return inBox, inAll
}

// TestSeveralPartsLookAtFewBoxes bounds the cost of a decision in a large pool where the box of one
// part has room for the others, which is made while the manager's lock is held.
func TestSeveralPartsLookAtFewBoxes(t *testing.T) {
	p := newPartPool(1000, 8)
	req := several(3, 8<<30, 300)
	if n := testing.AllocsPerRun(1, func() { p.Place(Reserve{}, req) }); n > 100 {
		t.Errorf("%v allocations", n)
	}
}
