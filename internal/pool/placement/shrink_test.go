package placement

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestShrink(t *testing.T) {
	// held parses GPUs such as "b1/0", in the order in which the lease
	// got them: "!" not sound, "~" not attached yet, "b1/0.x" in domain x.
	held := func(words ...string) []LeasedGPU {
		var out []LeasedGPU
		for i, w := range words {
			h := LeasedGPU{Sound: true, Attached: true, Order: uint64(i)}
			switch w[0] {
			case '!':
				h.Sound, w = false, w[1:]
			case '~':
				h.Attached, w = false, w[1:]
			}
			h.Box, h.Slot = w[:2], uint32(w[3]-'0')
			if len(w) > 5 {
				h.Domain = w[5:]
			}
			out = append(out, h)
		}
		return out
	}
	tests := []struct {
		name   string
		held   []LeasedGPU
		n      int
		spread bool
		want   string
	}{
		{"the newest of one box", held("b1/0", "b1/1", "b1/2"), 1, false, "b1/2"},
		{"the smaller box", held("b1/0", "b2/0", "b1/1"), 1, false, "b2/0"},
		{"whole boxes", held("b1/0", "b2/0", "b2/1", "b1/1", "b1/2", "b3/0"), 3, false, "b2/0 b2/1 b3/0"},
		{"the smaller domain", held("b1/0.x", "b1/1.y", "b1/2.x"), 1, false, "b1/1"},
		{"a broken GPU", held("!b1/0", "b1/1", "b2/0"), 1, false, "b1/0"},
		{"a GPU not attached yet", held("b1/0", "~b1/1", "b2/0"), 1, false, "b1/1"},
		{"broken before not attached", held("~b1/0", "!b1/1"), 1, false, "b1/1"},
		{"spread: from the fullest", held("b1/0", "b1/1", "b2/0"), 1, true, "b1/1"},
		{"none", held("b1/0"), 0, false, ""},
		{"more than the lease has", held("b1/0", "b1/1"), 3, false, "b1/0 b1/1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Shrink(tt.held, tt.n, tt.spread)
			slices.SortFunc(got, func(a, b Ref) int {
				if a.String() < b.String() {
					return -1
				}
				return 1
			})
			if diff := cmp.Diff(tt.want, join(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
