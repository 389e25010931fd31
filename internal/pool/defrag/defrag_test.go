package defrag

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// pool makes GPUs from a text for each box, with a letter for each GPU: f free, l leaving,
// m movable, x fixed; capitals are of another model. Leases have the names of their GPUs.
func pool(boxes ...string) (gpus []GPU) {
	states := map[rune]State{'f': Free, 'l': Leaving, 'm': Movable, 'x': Fixed}
	for b, slots := range boxes {
		for s, letter := range slots {
			g := GPU{ID: fmt.Sprintf("b%d/%d", b+1, s), Box: fmt.Sprintf("b%d", b+1), Model: "A", State: states[letter]}
			if lower := strings.ToLower(string(letter)); lower != string(letter) {
				g.Model, g.State = "B", states[[]rune(lower)[0]]
			}
			if g.State == Movable {
				g.Lease = "l-" + g.ID
			}
			gpus = append(gpus, g)
		}
	}
	return gpus
}

func TestFind(t *testing.T) {
	move := func(from, to string) Move { return Move{Lease: "l-" + from, From: from, To: to} }
	for name, c := range map[string]struct {
		boxes []string
		model string
		want  int
		plan  Plan
		ok    bool
	}{
		"has room":               {[]string{"mf", "ff"}, "", 2, Plan{Box: "b2", Model: "A", Free: 2, Moves: []Move{}}, true},
		"fewest moves":           {[]string{"mmff", "mfff", "ffxx"}, "", 4, Plan{Box: "b2", Model: "A", Free: 3, Moves: []Move{move("b2/0", "b1/2")}}, true},
		"into the fullest box":   {[]string{"mmff", "ffxx", "fxxx"}, "", 4, Plan{Box: "b1", Model: "A", Free: 2, Moves: []Move{move("b1/0", "b3/0"), move("b1/1", "b2/0")}}, true},
		"fixed ones stay":        {[]string{"xff", "mff"}, "", 3, Plan{Box: "b2", Model: "A", Free: 2, Moves: []Move{move("b2/0", "b1/1")}}, true},
		"no room elsewhere":      {[]string{"mf", "xx"}, "", 2, Plan{Box: "b1", Model: "A", Free: 1, Moves: []Move{}}, false},
		"not within one model":   {[]string{"mf", "FF"}, "", 2, Plan{Box: "b2", Model: "B", Free: 2, Moves: []Move{}}, true},
		"only the model":         {[]string{"mf", "FF"}, "A", 2, Plan{Box: "b1", Model: "A", Free: 1, Moves: []Move{}}, false},
		"models in one box":      {[]string{"mfFF", "fx"}, "A", 2, Plan{Box: "b1", Model: "A", Free: 1, Moves: []Move{move("b1/0", "b2/0")}}, true},
		"larger than a box":      {[]string{"ff", "ff"}, "", 3, Plan{Box: "b1", Model: "A", Free: 2, Moves: []Move{}}, false},
		"nothing of the model":   {[]string{"ff"}, "B", 1, Plan{}, false},
		"leaving is room":        {[]string{"ml", "fx"}, "", 2, Plan{Box: "b1", Model: "A", Free: 1, Moves: []Move{move("b1/0", "b2/0")}}, true},
		"leaving is no target":   {[]string{"mf", "lx"}, "", 2, Plan{Box: "b1", Model: "A", Free: 1, Moves: []Move{}}, false},
		"an empty pool":          {nil, "", 1, Plan{}, false},
		"not its own free GPUs":  {[]string{"mff"}, "", 3, Plan{Box: "b1", Model: "A", Free: 2, Moves: []Move{}}, false},
		"prefers what it can do": {[]string{"xfff", "mmmf", "ffff"}, "", 4, Plan{Box: "b3", Model: "A", Free: 4, Moves: []Move{}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			plan, ok := Find(pool(c.boxes...), c.model, c.want)
			if diff := cmp.Diff(c.plan, plan); diff != "" || ok != c.ok {
				t.Errorf("%v, want %v (-want +got):\n%s", ok, c.ok, diff)
			}
		})
	}
}

// Every plan of a random pool is carried out: each move is from a GPU that may move to a free
// one in another box, and then the box has the room.
func TestPlansMakeRoom(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	plans := 0
	for range 5000 {
		var boxes []string
		for range 1 + rng.IntN(6) {
			slots := make([]byte, 1+rng.IntN(8))
			for i := range slots {
				slots[i] = "ffmmxlFMXL"[rng.IntN(10)]
			}
			boxes = append(boxes, string(slots))
		}
		want := 1 + rng.IntN(8)
		gpus := pool(boxes...)
		plan, ok := Find(gpus, "", want)
		if !ok {
			continue
		}
		plans++
		at := map[string]*GPU{}
		for i := range gpus {
			at[gpus[i].ID] = &gpus[i]
		}
		for _, m := range plan.Moves {
			from, to := at[m.From], at[m.To]
			if from.State != Movable || from.Lease != m.Lease || to.State != Free || from.Box == to.Box || from.Model != to.Model {
				t.Fatalf("%q, want %d: move %+v of %+v", boxes, want, m, plan)
			}
			from.State, to.State = Free, Fixed
		}
		free := 0
		for _, g := range gpus {
			if g.Box == plan.Box && g.Model == plan.Model && (g.State == Free || g.State == Leaving) {
				free++
			}
		}
		if free < want || len(plan.Moves) > 0 && free != want {
			t.Fatalf("%q: %d GPUs free after %+v, want %d", boxes, free, plan, want)
		}
	}
	if plans < 1000 {
		t.Errorf("only %d plans", plans)
	}
}
