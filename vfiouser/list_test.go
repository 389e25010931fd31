package vfiouser

import (
	"slices"
	"testing"
)

func TestList(t *testing.T) {
	type item struct {
		n    int
		wait element[item]
	}
	for _, c := range []struct {
		name   string
		remove []int
		want   []int
	}{
		{"none", nil, []int{0, 1, 2, 3}},
		{"the first", []int{0}, []int{1, 2, 3}},
		{"one inside", []int{2}, []int{0, 1, 3}},
		{"the last", []int{3}, []int{0, 1, 2}},
		{"all but one", []int{3, 0, 1}, []int{2}},
		{"all, and one again", []int{1, 3, 0, 2, -1}, []int{1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var l list[item]
			items := make([]item, 4)
			for i := range items {
				items[i].n = i
				l.push(&items[i], &items[i].wait)
			}
			for _, i := range c.remove {
				if i < 0 {
					l.push(&items[-i], &items[-i].wait)
					continue
				}
				l.remove(&items[i].wait)
			}
			var forward, back []int
			for e := l.head; e != nil; e = e.next {
				forward = append(forward, e.of.n)
			}
			for e := l.tail; e != nil; e = e.prev {
				back = append(back, e.of.n)
			}
			slices.Reverse(back)
			if !slices.Equal(forward, c.want) || !slices.Equal(back, c.want) {
				t.Errorf("%v, backwards %v, want %v", forward, back, c.want)
			}
			for i := range items {
				if !l.empty() && l.first() == &items[i] {
					l.remove(&items[i].wait)
				}
			}
			if !l.empty() || l.first() != nil || l.tail != nil {
				t.Error("not empty in the end")
			}
		})
	}
}
