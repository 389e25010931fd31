package web

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// TestOutcomeAfterError checks that a form which failed at first is remembered as long as
// every other once it has succeeded.
func TestOutcomeAfterError(t *testing.T) {
	o := outcomes{known: map[string]*outcome{}}
	did := 0
	send := func(request string, err error) {
		_, _ = o.of(t.Context(), request, func(context.Context) (string, string, error) {
			did++
			return "", "", err
		})
	}
	send("form", errors.New("the manager was busy"))
	for i := range maxOutcomes - 1 {
		send(fmt.Sprint(i), nil)
	}
	send("form", nil)
	send("another", nil) // removes the oldest: "0", not the form
	before := did
	send("form", nil)
	if did != before {
		t.Error("the form took effect twice")
	}
	if len(o.order) != len(o.known) || len(o.known) > maxOutcomes {
		t.Errorf("%d in order, %d known", len(o.order), len(o.known))
	}
}
