package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestPreempt(t *testing.T) {
	victims := []Victim{
		{ID: "old", Size: 2, Order: 1}, {ID: "young", Size: 2, Order: 9}, {ID: "small", Size: 1, Order: 5}, {ID: "costly", Priority: 3, Size: 2, Order: 7}, {ID: "big", Size: 8, Order: 2},
	}
	room := func(n int) func([]Victim) bool {
		return func(gone []Victim) bool {
			free := 0
			for _, v := range gone {
				free += v.Size
			}
			return free >= n
		}
	}
	in := func(id string) func([]Victim) bool {
		return func(gone []Victim) bool { return slices.ContainsFunc(gone, func(v Victim) bool { return v.ID == id }) }
	}
	tests := []struct {
		name string
		fits func([]Victim) bool
		want string
	}{
		{"one GPU: the smallest", room(1), "small"},
		{"two: the youngest of the cheapest", room(2), "young"},
		{"three: not more than needed", room(3), "small young"},
		{"four: two small ones instead of the big one", room(4), "old young"},
		{"eight: without the costly one", room(8), "big"},
		{"all", room(15), "big costly old small young"},
		{"more than all", room(16), ""},
		{"only the costly one makes room", in("costly"), "costly"},
		{"none makes room", func([]Victim) bool { return false }, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, v := range Preempt(victims, 100, tt.fits) {
				got = append(got, v.ID)
			}
			slices.Sort(got)
			if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
				t.Error(diff)
			}
		})
	}
	if Preempt(nil, 100, func([]Victim) bool { return true }) != nil {
		t.Error("Preempt chose a victim from no candidates")
	}
}

// TestPreemptTakesNoMoreThanNeeded checks that the choice makes room, that all of it is needed,
// and that no single lease would cost less.
func TestPreemptTakesNoMoreThanNeeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var victims []Victim
		need := map[string]int{} // GPUs needed by box
		boxes := []string{"a", "b", "c"}
		has := map[string]map[string]int{}
		for i := range rapid.IntRange(0, 8).Draw(t, "victims") {
			v := Victim{ID: fmt.Sprint(i), Priority: rapid.Int32Range(-2, 2).Draw(t, "priority"), Order: uint64(i)}
			has[v.ID] = map[string]int{}
			for _, b := range boxes {
				n := rapid.IntRange(0, 3).Draw(t, "gpus")
				has[v.ID][b], v.Size = n, v.Size+n
			}
			victims = append(victims, v)
		}
		for _, b := range boxes {
			need[b] = rapid.IntRange(0, 5).Draw(t, "need")
		}
		fits := func(gone []Victim) bool {
			for _, b := range boxes {
				n := 0
				for _, v := range gone {
					n += has[v.ID][b]
				}
				if n < need[b] {
					return false
				}
			}
			return true
		}
		got := Preempt(victims, 1000, fits)
		if got == nil {
			if len(victims) > 0 && fits(victims) {
				t.Fatal("no victims were chosen, although all of them make room")
			}
			return
		}
		if !fits(got) {
			t.Fatalf("%v does not make room", got)
		}
		for i, v := range got {
			if rest := slices.Delete(slices.Clone(got), i, i+1); len(rest) > 0 && fits(rest) {
				t.Fatalf("%v of %v need not go", v, got)
			}
		}
		for _, v := range victims {
			if one := []Victim{v}; fits(one) && Cheaper(one, got) {
				t.Fatalf("%v is cheaper than %v", v, got)
			}
		}
	})
}

// With any number of tries, all of them are used at most, and the choice is one that was
// tried and makes room, also if more room is worse at times, as for a gang.
func TestPreemptIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var victims []Victim
		for i := range rapid.IntRange(1, 300).Draw(t, "victims") {
			victims = append(victims, Victim{ID: fmt.Sprint(i), Size: rapid.IntRange(1, 4).Draw(t, "GPUs"), Order: uint64(i)})
		}
		tries, n, odd := rapid.IntRange(0, 40).Draw(t, "tries"), rapid.IntRange(0, 100).Draw(t, "needed"), rapid.IntRange(2, 9).Draw(t, "odd")
		made := 0
		room := func(gone []Victim) bool { return len(gone) == len(victims) || len(gone) >= n && len(gone)%odd != 0 }
		got := Preempt(victims, tries, func(gone []Victim) bool {
			made++
			return room(gone)
		})
		if made > tries {
			t.Fatalf("%d tries, want at most %d", made, tries)
		}
		if len(victims) <= MaxVictims && (got == nil) != (tries == 0) || got != nil && !room(got) {
			t.Fatalf("after %d tries: %d victims of %d", tries, len(got), len(victims))
		}
	})
}
