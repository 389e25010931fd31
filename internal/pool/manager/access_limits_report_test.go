package manager

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// TestReportsOfManyChanges: a box that reports changes of all of its slots without pause keeps the
// leader no longer than a tenth of the time, and one that reports a change at a time is not held up.
func TestReportsOfManyChanges(t *testing.T) {
	const slots = 512
	box := boxNode("b1", slots)
	w := newWorld(t, Config{}, box)
	if err := w.m.update(t.Context(), func(t *tx) error {
		t.nodes.edit("b1").CredentialHash = auth.Hash("secret")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	handler := w.m.Handler()
	report := func() answer {
		raw, err := protojson.Marshal(&dxpuv1.ReportRequest{State: box.observe()})
		if err != nil {
			t.Fatal(err)
		}
		return callJSON(handler, "/dxpu.v1.NodeService/Report", "secret", "192.0.2.7:1", raw)
	}
	flood := func(change func(), n int) (last answer, passed int) {
		for range n {
			change()
			if last = report(); last.code != "ok" {
				return last, passed
			}
			passed++
		}
		return last, passed
	}
	one := func() { box.dead[0] = !box.dead[0] }
	all := func() {
		for i := range uint32(slots) {
			box.dead[i] = !box.dead[i]
		}
	}
	if last, passed := flood(one, 100); passed != 100 {
		t.Errorf("%d reports of one change passed, the next got %+v", passed, last)
	}
	w.clock.pass(burstSeconds * time.Second)
	const enough = nodeCallRate * burstSeconds * changesPerCall / slots
	last, passed := flood(all, 2*enough)
	if last.code != "resource_exhausted" || passed < enough/4 || passed > enough+1 {
		t.Errorf("%d reports that change all of %d slots passed at once, want at most %d; the last got %+v", passed, slots, enough, last)
	}
	w.clock.pass(time.Second)
	if _, passed := flood(all, enough); passed == 0 || passed > enough/burstSeconds+1 {
		t.Errorf("%d passed a second later", passed)
	}
}

// TestChargesAreBounded: a node that has no allowance left, and reports as many changes as there can
// be, is heard again in time.
func TestChargesAreBounded(t *testing.T) {
	l := newLimits(0, OpenLoopback)
	c := &call{caller: auth.Identity{Actor: "b1", Role: dxpuv1.Role_ROLE_BOX, Node: "b1"}, peer: "192.0.2.7:1"}
	now := time.Unix(1_700_000_000, 0)
	for l.admit(c, now) == nil {
	}
	l.chargeReport(c, 1<<30, now)
	if err := l.admit(c, now.Add(400*time.Millisecond)); err == nil {
		t.Error("the report was not charged")
	}
	if err := l.admit(c, now.Add(600*time.Millisecond)); err != nil {
		t.Error(err)
	}
}

// TestLostReportsAreNotCharged: a node that repeats a report, because the store has not kept its
// changes, is not held up for that.
func TestLostReportsAreNotCharged(t *testing.T) {
	const slots = 512
	box := boxNode("b1", slots)
	s := &gatedStore{}
	w := newWorld(t, Config{Store: s}, box)
	if err := w.m.update(t.Context(), func(t *tx) error {
		t.nodes.edit("b1").CredentialHash = auth.Hash("secret")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	handler := w.m.Handler()
	report := func() answer {
		raw, err := protojson.Marshal(&dxpuv1.ReportRequest{State: box.observe()})
		if err != nil {
			t.Fatal(err)
		}
		return callJSON(handler, "/dxpu.v1.NodeService/Report", "secret", "192.0.2.7:1", raw)
	}
	for i := range uint32(slots) {
		box.dead[i] = true
	}
	s.gate = make(chan error, 1)
	for i := range 30 {
		s.gate <- errors.New("the disk is full")
		if got := report(); got.code != "unavailable" {
			t.Fatalf("report %d: %+v", i, got)
		}
	}
	s.gate = nil
	if got := report(); got.code != "ok" {
		t.Errorf("after the store works again: %+v", got)
	}
}
