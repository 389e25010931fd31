package soak_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/soak"
)

// A short run finds no violation.
func TestSoak(t *testing.T) {
	o := soak.Options{Duration: 20 * time.Second, Seed: 1, Every: 2 * time.Second, Progress: t.Logf}
	if testing.Short() {
		o.Duration = 5 * time.Second
	}
	rep, err := soak.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v\n%v\n%+v\nexcused %v; %d stalls, the longest %v", rep.Account, rep.Faults, rep.Samples, time.Duration(rep.ExcusedNS), rep.Stalls, time.Duration(rep.LongestStall))
	if !rep.OK {
		t.Errorf("seed %d:\n%s", rep.Seed, strings.Join(rep.Violations, "\n"))
	}
	if rep.Account.Done == 0 || rep.Account.PostedWrites == 0 || rep.Account.BalancedSessions == 0 ||
		rep.Account.FarPeerBytes == 0 || rep.Account.PeerBytes == rep.Account.FarPeerBytes || rep.Account.ServerBytes == 0 {
		t.Error("the run did no work")
	}
}
