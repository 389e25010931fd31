package manager

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
)

// occupied returns a gate of width one whose turn is taken, and its release.
func occupied(t *testing.T) (*gate, func()) {
	t.Helper()
	g := newGate(1)
	leave, err := g.acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return g, leave
}

// queue lets n callers wait, a pause apart, and returns the order in which they get
// their turns.
func queue(t *testing.T, g *gate, n int, apart time.Duration) (order *[]int, done func()) {
	order = new([]int)
	finished := make(chan struct{})
	for i := range n {
		go func() {
			leave, err := g.acquire(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			*order = append(*order, i) // only one at a time has the turn
			leave()
			finished <- struct{}{}
		}()
		synctest.Wait()
		time.Sleep(apart)
	}
	return order, func() {
		for range n {
			<-finished
		}
	}
}

func TestGateOrder(t *testing.T) {
	for _, tt := range []struct {
		name  string
		apart time.Duration
		want  []int
	}{
		{"a short wait: the oldest first", patience / 10, []int{0, 1, 2, 3}},
		{"a long one: the newest first, until the oldest have not waited for long", patience / 2, []int{3, 2, 1, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, leave := occupied(t)
				order, done := queue(t, g, len(tt.want), tt.apart)
				leave()
				done()
				if !slices.Equal(*order, tt.want) {
					t.Errorf("in the order %v, want %v", *order, tt.want)
				}
			})
		})
	}
}

// A caller that gives up leaves no entry behind, also when its turn comes at that
// moment.
func TestGateForgetsWhoGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, leave := occupied(t)
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error)
		go func() {
			_, err := g.acquire(ctx)
			gone <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-gone; connect.CodeOf(err) != connect.CodeUnavailable {
			t.Errorf("got %v", err)
		}
		if g.waiting.Len() != 0 {
			t.Errorf("%d wait", g.waiting.Len())
		}
		leave()
		leave() // only the first call counts
		if g.free != 1 {
			t.Errorf("%d are free, want 1", g.free)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		g, leave := occupied(t)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			if out, err := g.acquire(ctx); err == nil {
				out()
			}
		}()
		synctest.Wait()
		leave()
		cancel()
		synctest.Wait()
		if g.free != 1 || g.waiting.Len() != 0 {
			t.Errorf("%d are free, %d wait", g.free, g.waiting.Len())
		}
	})
}
