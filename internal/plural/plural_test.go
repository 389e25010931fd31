package plural

import "testing"

func TestCount(t *testing.T) {
	for n, want := range map[uint32]string{0: "0 boxes", 1: "1 box", 2: "2 boxes", 1<<32 - 1: "4294967295 boxes"} {
		if got := Count(n, "box", "boxes"); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}
