// Package defrag plans which leased GPUs to move to other boxes, so that one box has room for
// a request of several GPUs. It is pure: its caller lists the GPUs and carries the moves out.
package defrag

import (
	"cmp"
	"slices"
)

// State is what a plan may do with a GPU.
type State uint8

// States of a GPU.
const (
	Fixed   State = iota // bound or out of service, and must stay as it is
	Free                 // can be bound
	Leaving              // will be free soon: room, but no target of a move
	Movable              // bound, can move live, and its lease agrees
)

// GPU is a GPU of the pool.
type GPU struct {
	ID, Box, Model string
	State          State
	Lease          string // of a Movable one
}

// Move is the move of a lease from one GPU to another, in another box.
type Move struct {
	Lease string `json:"lease"`
	From  string `json:"from"`
	To    string `json:"to"`
}

// Plan says how a box gets room.
type Plan struct {
	Box   string `json:"box"`
	Model string `json:"model"`
	Free  int    `json:"free"` // GPUs of the model in the box that are or will be free without the moves
	Moves []Move `json:"moves"`
}

// group is the GPUs of one model in one box.
type group struct {
	box, model    string
	free, movable []GPU
	leaving       int
}

// room returns how many GPUs of the group can be bound, or can be soon.
func (g *group) room() int { return len(g.free) + g.leaving }

// Find returns the plan with the fewest moves after which a box has want free GPUs of one
// model. model chooses the model; "": any. Moves fill the fullest of the other boxes first. It
// returns false if no box can have want: then the plan names the box that comes nearest,
// without moves.
func Find(gpus []GPU, model string, want int) (Plan, bool) {
	groups := divide(gpus, model)
	targets := map[string]int{} // free GPUs by model
	for _, g := range groups {
		targets[g.model] += len(g.free)
	}
	var best *group
	possible := func(g *group) bool {
		missing := want - g.room()
		return missing <= len(g.movable) && missing <= targets[g.model]-len(g.free)
	}
	for _, g := range groups {
		// A box that can have want is better, and then one that has more of them already.
		if best == nil || cmp.Or(compare(possible(g), possible(best)), cmp.Compare(g.room(), best.room())) > 0 {
			best = g
		}
	}
	if best == nil {
		return Plan{}, false
	}
	p := Plan{Box: best.box, Model: best.model, Free: best.room(), Moves: []Move{}}
	if !possible(best) {
		return p, false
	}
	for i := range max(want-best.room(), 0) {
		to := fullest(groups, best)
		p.Moves = append(p.Moves, Move{Lease: best.movable[i].Lease, From: best.movable[i].ID, To: to.free[0].ID})
		to.free = to.free[1:]
	}
	return p, true
}

func compare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// divide returns the GPUs by box and model, in their order.
func divide(gpus []GPU, model string) (groups []*group) {
	type key struct{ box, model string }
	at := map[key]*group{}
	for _, g := range gpus {
		if model != "" && g.Model != model {
			continue
		}
		k := key{g.Box, g.Model}
		if at[k] == nil {
			at[k] = &group{box: g.Box, model: g.Model}
			groups = append(groups, at[k])
		}
		switch g.State {
		case Free:
			at[k].free = append(at[k].free, g)
		case Leaving:
			at[k].leaving++
		case Movable:
			at[k].movable = append(at[k].movable, g)
		case Fixed:
		}
	}
	return groups
}

// fullest returns the group with the fewest free GPUs of the model of from, in another box.
func fullest(groups []*group, from *group) *group {
	var open []*group
	for _, g := range groups {
		if g.box != from.box && g.model == from.model && len(g.free) > 0 {
			open = append(open, g)
		}
	}
	return slices.MinFunc(open, func(a, b *group) int { return cmp.Compare(len(a.free), len(b.free)) })
}
