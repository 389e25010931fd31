package store

import "testing"

func TestRun(t *testing.T) {
	r, err := Run(t.Context(), Spec{Dir: t.TempDir(), Leases: 70, AtOnce: 8, Rounds: 2})
	if err != nil {
		t.Fatal(err)
	}
	if r.Leases.Count != 140 || r.Puts.Count != 140 || r.Ratio <= 0 || r.PutBytes < 300 || r.LeasesPerWrite < 1 || r.Leases.P99NS < r.Leases.P50NS {
		t.Errorf("%+v", r)
	}
}
