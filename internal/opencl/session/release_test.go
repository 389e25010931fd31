package session

import "testing"

// Memory waits for the commands from before its release, in whichever order they end, and
// for no later ones.
func TestReleases(t *testing.T) {
	var r releases
	a, b, c := &shared{}, &shared{}, &shared{}
	expect := func(want ...*shared) {
		t.Helper()
		for _, w := range want {
			if got := r.take(); got != w {
				t.Errorf("took %p, want %p", got, w)
			}
		}
		if got := r.take(); got != nil {
			t.Errorf("took %p, want none", got)
		}
	}
	r.add(a, 0, 7) // no command is there
	expect(a)
	r.add(a, 2, 9)  // 8 and 9
	r.add(b, 3, 10) // and 10
	r.add(c, 3, 10)
	expect()
	r.end(11) // began after all of them
	r.end(10)
	r.end(8)
	expect()
	r.end(9)
	expect(a, b, c)
	r.end(12)
	expect()
}
