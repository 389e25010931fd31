package web

import (
	"cmp"
	"slices"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// leasesData is the content of the page of leases.
type leasesData struct {
	Queue    []*dxpuv1.Lease
	Reserved []*dxpuv1.Lease // that begin later
	Leases   []leaseRow
	Next     string
	Filter   leaseFilter
	States   []string
}

type leaseFilter struct {
	Tenant, Host, State string
	Ended               bool
}

// leaseRow is a lease and its GPUs.
type leaseRow struct {
	*dxpuv1.Lease
	GPUs   []string
	Silent []string // its nodes that do not report
}

// gpusOf returns the GPUs that are attached to a lease or being attached.
func gpusOf(l *dxpuv1.Lease) []string {
	var out []string
	for _, b := range l.Bindings {
		if b.FollowsBindingId != "" {
			continue // the lease may go on with it
		}
		switch b.State {
		case dxpuv1.BindingState_BINDING_STATE_PREPARING, dxpuv1.BindingState_BINDING_STATE_READY, dxpuv1.BindingState_BINDING_STATE_ATTACHED:
			out = append(out, b.GpuId)
		}
	}
	return out
}

func (s *Server) leasesPage(v *view) error {
	v.Name, v.Title, v.Nav = "leases", "Leases", "leases"
	d := &leasesData{Filter: leaseFilter{v.Query.Get("tenant"), v.Query.Get("host"), v.Query.Get("state"), v.Query.Get("ended") != ""}}
	v.Data = d
	state := dxpuv1.LeaseState_LEASE_STATE_UNSPECIFIED
	for i := dxpuv1.LeaseState_LEASE_STATE_PENDING; i <= dxpuv1.LeaseState_LEASE_STATE_FAILED; i++ {
		d.States = append(d.States, word(i))
		if word(i) == d.Filter.State {
			state = i
		}
	}
	leases, next, err := collect(v.Query.Get("after"), rowsPerPage, func(token string) (fetched[*dxpuv1.Lease], error) {
		res, err := ask(v.ctx(), v.api.ListLeases, &dxpuv1.ListLeasesRequest{
			Tenant: d.Filter.Tenant, HostId: d.Filter.Host, State: state, IncludeEnded: d.Filter.Ended, PageSize: rowsPerPage, PageToken: token,
		})
		return fetched[*dxpuv1.Lease]{res.GetLeases(), res.GetNextPageToken()}, err
	}, func(l *dxpuv1.Lease) bool {
		// Waiting leases are in the table of the queue.
		return l.State != dxpuv1.LeaseState_LEASE_STATE_PENDING
	})
	if err != nil {
		return err
	}
	missing := newSilence(v)
	for _, l := range leases {
		row := leaseRow{Lease: l, GPUs: gpusOf(l)}
		if l.State < dxpuv1.LeaseState_LEASE_STATE_RELEASED {
			row.Silent = missing.ofLease(l)
		}
		d.Leases = append(d.Leases, row)
	}
	d.Next = next
	if state != dxpuv1.LeaseState_LEASE_STATE_UNSPECIFIED && state != dxpuv1.LeaseState_LEASE_STATE_PENDING || v.Query.Has("after") {
		return nil
	}
	if d.Reserved, err = reservations(v, d.Filter); err != nil {
		return err
	}
	d.Queue, err = queue(v, rowsPerPage)
	d.Queue = slices.DeleteFunc(d.Queue, func(l *dxpuv1.Lease) bool {
		return d.Filter.Tenant != "" && l.GetSpec().GetTenant() != d.Filter.Tenant
	})
	return err
}

// reservations returns the leases that begin later.
func reservations(v *view, f leaseFilter) ([]*dxpuv1.Lease, error) {
	res, err := ask(v.ctx(), v.api.ListLeases, &dxpuv1.ListLeasesRequest{Reserved: true, Tenant: f.Tenant})
	return slices.DeleteFunc(res.GetLeases(), func(l *dxpuv1.Lease) bool {
		return !sleeps(l) || f.Host != "" && l.GetReservation().GetHostId() != f.Host
	}), allowedOrUnknown(err)
}

// leaseData is the content of the page of a lease.
type leaseData struct {
	*dxpuv1.Lease
	GPUs     []string
	Why      []string
	Bindings []bindingView
	Events   []*dxpuv1.Event
	Over     bool
	Moves    []move
	Movable  []string // GPUs that the viewer can move
}

// bindingView is a binding and the chart of its timeline.
type bindingView struct {
	*dxpuv1.Binding
	Phases []phase
}

// phase is a part of a binding's timeline: the attach, or the migration to this GPU, or the detach.
type phase struct {
	Name  string
	Took  time.Duration
	Steps []stepView
	// After is the time between the previous phase and this one.
	After string
}

// Total returns the duration of the phase as text.
func (p phase) Total() string { return formatDuration(p.Took) }

// stepView is a step and its bar: offset and width in percent of the phase.
type stepView struct {
	*dxpuv1.Step
	X, W float64
	By   string
}

// detachStates are the states with which a binding's detach starts.
var detachStates = map[string]bool{"detaching": true, "lost": true, "failed": true, "resetting": true}

// phases divides a timeline into attach, or migration, and detach. In one chart, days of use in
// between would hide the milliseconds of both.
func phases(b *dxpuv1.Binding) []phase {
	steps := slices.Clone(b.Timeline)
	slices.SortStableFunc(steps, func(a, b *dxpuv1.Step) int { return a.GetTime().AsTime().Compare(b.GetTime().AsTime()) })
	end := slices.IndexFunc(steps, func(s *dxpuv1.Step) bool { return s.NodeId == "" && detachStates[s.Name] })
	if end < 0 {
		end = len(steps)
	}
	var out []phase
	if end > 0 {
		name := "Attach"
		if slices.ContainsFunc(steps[:end], func(s *dxpuv1.Step) bool { return s.Name == "copying" }) {
			name = "Migration"
		}
		out = append(out, draw(name, steps[:end]))
	}
	if end < len(steps) {
		p := draw("Detach", steps[end:])
		p.After = formatDuration(steps[end].GetDuration().AsDuration())
		out = append(out, p)
	}
	return out
}

// draw places the bars of steps on the duration of their phase. A step's time is its
// end, so its bar starts its duration before.
func draw(name string, steps []*dxpuv1.Step) phase {
	p := phase{Name: name}
	first := steps[0].GetTime().AsTime()
	last := steps[len(steps)-1].GetTime().AsTime()
	p.Took = last.Sub(first)
	whole := float64(max(p.Took, 1))
	for i, s := range steps {
		v := stepView{Step: s, By: cmp.Or(s.NodeId, "manager")}
		if i > 0 {
			at := s.GetTime().AsTime()
			from := max(0, at.Sub(first)-s.GetDuration().AsDuration())
			v.X = 100 * float64(from) / whole
			v.W = 100 * float64(at.Sub(first)-from) / whole
		}
		p.Steps = append(p.Steps, v)
	}
	return p
}

func (s *Server) leasePage(v *view) error {
	id := v.r.PathValue("lease")
	v.Name, v.Title, v.Nav = "lease", "Lease "+id, "leases"
	res, err := ask(v.ctx(), v.api.GetLease, &dxpuv1.GetLeaseRequest{LeaseId: id})
	if err != nil {
		return err
	}
	l := res.GetLease()
	d := &leaseData{Lease: l, GPUs: gpusOf(l), Over: l.State >= dxpuv1.LeaseState_LEASE_STATE_RELEASED, Moves: movesOf(l)}
	v.Data = d
	if d.Movable, err = movableGPUs(v, l); err != nil {
		return err
	}
	for _, b := range slices.Backward(l.Bindings) {
		d.Bindings = append(d.Bindings, bindingView{b, phases(b)})
	}
	// Released bindings come last; within both groups the order is by host slot.
	slices.SortStableFunc(d.Bindings, func(a, b bindingView) int {
		return cmp.Or(cmp.Compare(rank(a.State), rank(b.State)), cmp.Compare(a.HostSlot, b.HostSlot))
	})
	why, err := ask(v.ctx(), v.api.ExplainLease, &dxpuv1.ExplainLeaseRequest{What: &dxpuv1.ExplainLeaseRequest_LeaseId{LeaseId: id}})
	if err == nil {
		d.Why = why.Explanation
	}
	d.Events, err = newestEvents(v, &dxpuv1.EventFilter{LeaseId: id}, shownEvents)
	return allowed(err)
}

func rank(s dxpuv1.BindingState) int {
	if s == dxpuv1.BindingState_BINDING_STATE_RELEASED {
		return 1
	}
	return 0
}
