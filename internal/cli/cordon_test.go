package cli

import (
	"errors"
	"strings"
	"testing"

	"connectrpc.com/connect"
)

// A command names a target by its kind in the singular, also when the argument is a plural.
func TestTargetName(t *testing.T) {
	for kind, want := range map[string]string{
		"gpu": "gpu b1/0", "gpus": "gpu b1/0", "box": "box b1/0", "boxes": "box b1/0", "host": "host b1/0", "hosts": "host b1/0",
	} {
		target, err := parseTarget(kind, "b1/0")
		if err != nil {
			t.Fatal(err)
		}
		if got := targetName(target); got != want {
			t.Errorf("%s: %q, want %q", kind, got, want)
		}
	}
}

// A refusal leads to the list that shows its cause.
func TestHintsOfRefusedLeases(t *testing.T) {
	for why, want := range map[string]string{
		"No host is reachable and not cordoned. No preemptible lease has a priority below 0.": `"dxpu get hosts" shows`,
		"Host h1 is unreachable, cordoned or in maintenance.":                                 `"dxpu get hosts" shows`,
		"Host h1 has 2 free slots. GPU b1/0 is of model M.":                                   "leave --model out",
		"Host h1 has 2 free slots. GPU b1/0 is not in the pool.":                              "until this one joins",
		"Host h1 has 2 free slots. Model M: 0 of 8 usable GPUs are free.":                     "shows the free GPUs",
	} {
		err := connect.NewError(connect.CodeResourceExhausted, errors.New(noCapacity+" "+why))
		if got := hintFor(err, err); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", why, got, want)
		}
	}
}
