package bench

import (
	"context"
	"errors"
	"testing"
)

// Busy loops run while the benchmark runs, and a benchmark does not begin without
// them.
func TestBesideLoops(t *testing.T) {
	failed := errors.New("the benchmark failed")
	got, err := BesideLoops(t.Context(), 2, nil, func(context.Context) (int, error) { return 7, failed })
	if got != 7 || !errors.Is(err, failed) {
		t.Errorf("%d, %v", got, err)
	}
	// No child may start here: it would run the tests again (once: see process.Start).
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := BesideLoops(canceled, 1, []string{"busy"}, func(context.Context) (int, error) {
		t.Error("the benchmark runs without its neighbour")
		return 0, nil
	}); err == nil {
		t.Error("a neighbour that cannot be started is no error")
	}
}
