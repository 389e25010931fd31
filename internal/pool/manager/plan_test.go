package manager

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// planMaintenance carries out the command "maintenance" of a scenario.
func (s *scenario) planMaintenance(t *testing.T, d *datadriven.TestData) error {
	text := func(key string) string {
		v := "0s"
		d.MaybeScanArgs(t, key, &v)
		return v
	}
	start := s.clock.now().Add(duration(t, text("in")))
	m := &dxpuv1.Maintenance{
		StartTime: timestamppb.New(start), EndTime: timestamppb.New(start.Add(duration(t, text("for")))), KeepLeases: d.HasArg("keep"),
	}
	if d.HasArg("drain-before") {
		m.DrainBefore = durationpb.New(duration(t, text("drain-before")))
	}
	switch id := d.CmdArgs[1].Key; d.CmdArgs[0].Key {
	case "box":
		m.Target = &dxpuv1.Maintenance_BoxId{BoxId: id}
	case "host":
		m.Target = &dxpuv1.Maintenance_HostId{HostId: id}
	default:
		m.Target = &dxpuv1.Maintenance_Rack{Rack: id}
	}
	_, err := s.api().PlanMaintenance(context.Background(), connect.NewRequest(&dxpuv1.PlanMaintenanceRequest{Maintenance: m}))
	return err
}

// plans lists the maintenance that is not over.
func (s *scenario) plans() string {
	res, err := s.api().ListMaintenance(context.Background(), connect.NewRequest(&dxpuv1.ListMaintenanceRequest{}))
	if err != nil {
		s.t.Fatal(err)
	}
	var out strings.Builder
	for _, m := range res.Msg.Maintenance {
		fmt.Fprintf(&out, "%s is %s; leases there: %v\n", m.Id, strings.ToLower(strings.TrimPrefix(m.State.String(), "MAINTENANCE_STATE_")), m.LeaseIds)
	}
	return s.named(out.String())
}

func planRequest(w *world, box string, in, lasts time.Duration) *dxpuv1.PlanMaintenanceRequest {
	start := w.clock.now().Add(in)
	return &dxpuv1.PlanMaintenanceRequest{Maintenance: &dxpuv1.Maintenance{
		Target: &dxpuv1.Maintenance_BoxId{BoxId: box}, StartTime: timestamppb.New(start), EndTime: timestamppb.New(start.Add(lasts)),
	}}
}

// Of two plans for a host one lets the leases stay, and began first. The other one ends them.
func TestPlanBesideOneThatKeepsLeases(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 1))
	id := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	for i, keep := range []bool{true, false} {
		start := w.clock.now().Add(time.Duration(1+i) * time.Minute)
		if _, err := w.api().PlanMaintenance(context.Background(), connect.NewRequest(&dxpuv1.PlanMaintenanceRequest{Maintenance: &dxpuv1.Maintenance{
			Target: &dxpuv1.Maintenance_HostId{HostId: "h1"}, StartTime: timestamppb.New(start), EndTime: timestamppb.New(start.Add(time.Hour)), KeepLeases: keep,
		}})); err != nil {
			t.Fatal(err)
		}
	}
	w.passReporting(90 * time.Second)
	w.wantLease(id, leaseActive)
	w.passReporting(time.Minute)
	if l := w.wantLease(id, dxpuv1.LeaseState_LEASE_STATE_RELEASED); !strings.Contains(l.StateReason, "m-2") {
		t.Errorf("it ended: %s", l.StateReason)
	}
}

// TestPlanIsChecked has requests that would be mistakes, and the bound of plans.
func TestPlanIsChecked(t *testing.T) {
	w := newWorld(t, Config{}, boxNode("b1", 1))
	plan := func(change func(*dxpuv1.PlanMaintenanceRequest)) error {
		r := planRequest(w, "b1", time.Hour, time.Hour)
		change(r)
		_, err := w.api().PlanMaintenance(context.Background(), connect.NewRequest(r))
		return err
	}
	for _, c := range []struct {
		name   string
		change func(*dxpuv1.PlanMaintenanceRequest)
		code   connect.Code
		word   string
	}{
		{"nothing", func(r *dxpuv1.PlanMaintenanceRequest) { r.Maintenance = nil }, connect.CodeInvalidArgument, "maintenance.target"},
		{"no end", func(r *dxpuv1.PlanMaintenanceRequest) { r.Maintenance.EndTime = nil }, connect.CodeInvalidArgument, "end_time"},
		{"end before start", func(r *dxpuv1.PlanMaintenanceRequest) { r.Maintenance.EndTime = r.Maintenance.StartTime }, connect.CodeInvalidArgument, "not after"},
		{"no time", func(r *dxpuv1.PlanMaintenanceRequest) { r.Maintenance.StartTime.Nanos = -1 }, connect.CodeInvalidArgument, "start_time"},
		{"over", func(r *dxpuv1.PlanMaintenanceRequest) {
			r.Maintenance.StartTime, r.Maintenance.EndTime = timestamppb.New(time.Unix(1, 0)), timestamppb.New(time.Unix(2, 0))
		}, connect.CodeInvalidArgument, "in the past"},
		{"far ahead", func(r *dxpuv1.PlanMaintenanceRequest) {
			r.Maintenance.EndTime = timestamppb.New(w.clock.now().Add(2 * maxPlanAhead))
		}, connect.CodeInvalidArgument, "a year"},
		{"a rack with a typing error", func(r *dxpuv1.PlanMaintenanceRequest) {
			r.Maintenance.Target = &dxpuv1.Maintenance_Rack{Rack: "r9"}
		}, connect.CodeNotFound, `rack "r9"`},
		{"a negative drain", func(r *dxpuv1.PlanMaintenanceRequest) { r.Maintenance.DrainBefore = durationpb.New(-1) }, connect.CodeInvalidArgument, "drain_before"},
	} {
		if err := plan(c.change); connect.CodeOf(err) != c.code || !strings.Contains(fmt.Sprint(err), c.word) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	// A repeated request is one plan; another request with its ID is refused.
	named := func(r *dxpuv1.PlanMaintenanceRequest) { r.RequestId = "r" }
	if err := plan(named); err != nil {
		t.Fatal(err)
	}
	if err := plan(named); err != nil {
		t.Errorf("a repeated request: %v", err)
	}
	w.clock.pass(time.Minute)
	if err := plan(named); err != nil {
		t.Errorf("a command that is repeated a minute later: %v", err)
	}
	if err := plan(func(r *dxpuv1.PlanMaintenanceRequest) {
		named(r)
		r.Maintenance.EndTime.Seconds++
	}); connect.CodeOf(err) != connect.CodeAlreadyExists {
		t.Errorf("another request with the ID: %v", err)
	}
	for range maxPlans - 1 {
		if err := plan(func(*dxpuv1.PlanMaintenanceRequest) {}); err != nil {
			t.Fatal(err)
		}
	}
	if err := plan(func(*dxpuv1.PlanMaintenanceRequest) {}); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("one plan too many: %v", err)
	}
	if _, err := w.api().EndMaintenance(context.Background(), connect.NewRequest(&dxpuv1.EndMaintenanceRequest{MaintenanceId: "m-1"})); err != nil {
		t.Fatal(err)
	}
	if err := plan(func(*dxpuv1.PlanMaintenanceRequest) {}); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
}

// TestPlanSurvivesARestart has a manager that restarts while maintenance is planned, and one
// that restarts when its time has passed.
func TestPlanSurvivesARestart(t *testing.T) {
	store := &MemoryStore{}
	w := newWorld(t, Config{Store: store}, hostNode("h1", 2), boxNode("b1", 1), boxNode("b2", 1))
	if _, err := w.api().PlanMaintenance(context.Background(), connect.NewRequest(planRequest(w, "b1", time.Minute, time.Minute))); err != nil {
		t.Fatal(err)
	}
	w.restoredPool(store.records)
	w.settle()
	on := func(spec *dxpuv1.LeaseSpec) string {
		id := w.create(spec)
		w.settle()
		return w.wantLease(id, leaseActive).Bindings[0].GpuId
	}
	if got := on(&dxpuv1.LeaseSpec{Count: 1}); got != "b2/0" {
		t.Errorf("a lease without an end got %s", got)
	}
	if got := on(&dxpuv1.LeaseSpec{Count: 1, ExpiresAfter: durationpb.New(time.Second)}); got != "b1/0" {
		t.Errorf("a lease of a second got %s", got)
	}
	w.clock.pass(2 * time.Minute)
	w.restoredPool(store.records)
	w.settle()
	if res, err := w.api().ListMaintenance(context.Background(), connect.NewRequest(&dxpuv1.ListMaintenanceRequest{})); err != nil || len(res.Msg.Maintenance) != 0 {
		t.Errorf("%v, %v", res, err)
	}
	if got := on(&dxpuv1.LeaseSpec{Count: 1}); got != "b1/0" {
		t.Errorf("after the maintenance a lease got %s", got)
	}
}

// TestMaintenanceIsNotForOldManagers has managers of two versions.
func TestMaintenanceIsNotForOldManagers(t *testing.T) {
	w := newWorld(t, Config{}, boxNode("b1", 1))
	w.m.state.alike = false
	_, err := w.api().PlanMaintenance(context.Background(), connect.NewRequest(planRequest(w, "b1", time.Hour, time.Hour)))
	if connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("%v", err)
	}
}

// TestPlanOfManyNodes has maintenance of a rack of 12 boxes with 96 leases for which there
// is no other GPU: no transaction tries to move all of them, and those that cannot move are
// not tried again all the time.
func TestPlanOfManyNodes(t *testing.T) {
	const boxes, each = 12, 8
	nodes := []*fakeNode{}
	for i := range boxes {
		b := boxNode(fmt.Sprintf("b%d", i), each)
		b.rack = "r1"
		nodes = append(nodes, b, hostNode(fmt.Sprintf("h%d", i), each))
	}
	w := newWorld(t, Config{}, nodes...)
	var leases []string
	for range boxes * each {
		leases = append(leases, w.create(&dxpuv1.LeaseSpec{Count: 1}))
	}
	w.settle()
	now := w.clock.now()
	_, err := w.api().PlanMaintenance(context.Background(), connect.NewRequest(&dxpuv1.PlanMaintenanceRequest{Maintenance: &dxpuv1.Maintenance{
		Target: &dxpuv1.Maintenance_Rack{Rack: "r1"}, StartTime: timestamppb.New(now), EndTime: timestamppb.New(now.Add(time.Hour)), KeepLeases: true,
	}}))
	if err != nil {
		t.Fatal(err)
	}
	// tries carries out what is due, and returns how often it looked for another GPU.
	tries := func() (n int) {
		for w.m.unfinished() {
			w.m.mu.Lock()
			t := w.m.beginLocked(w.clock.now())
			t.markAlarmed()
			if err := t.settle(); err != nil {
				w.t.Fatalf("%v", err)
			}
			if t.attempts > maxAttemptsPerPass+each {
				w.t.Fatalf("%d attempts in one transaction", t.attempts)
			}
			n += t.attempts
			w.m.queueLocked(t)
			w.m.mu.Unlock()
		}
		return n
	}
	if n := tries(); n != boxes*each {
		t.Errorf("%d attempts at first, want one for each binding, %d", n, boxes*each)
	}
	for range 3 {
		w.clock.pass(maintainInterval)
		if n := tries(); n != 0 {
			t.Errorf("%d attempts although nothing could move", n)
		}
	}
	for _, id := range leases {
		w.wantLease(id, leaseActive)
	}
}
