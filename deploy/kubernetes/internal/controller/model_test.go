package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
)

// modelManager is a manager with two hosts and two boxes of three GPUs each, which attaches GPUs,
// loses them, fails, and is restored from a backup.
type modelManager struct {
	*awayManager // its network

	// deleting is called before a lease is released.
	deleting func(*dxpuv1.Lease)

	mu       sync.Mutex // guards the fields below
	random   *rand.Rand
	faults   bool // calls fail, GPUs are lost
	leases   map[string]*dxpuv1.Lease
	last     int                         // the number in the ID of the newest lease
	revision uint64                      // of the newest change
	restored uint64                      // the first revision after the last restore
	streams  map[chan *dxpuv1.Lease]bool // of those that watch the leases
	backup   map[string]*dxpuv1.Lease
	served   map[string]bool      // by lease and claim: those that have had their GPU
	lost     map[string]bool      // as served: those that have lost it
	ends     map[string]time.Time // by lease that waits: when it has waited in vain
	calls    sync.WaitGroup       // that are late
}

const (
	modelBoxes, modelGPUs  = 2, 3
	modelHosts, modelSlots = 2, 4
)

// change lets the model do something with a chance in per cent, while there are faults.
func (m *modelManager) change(percent int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changeLocked(percent)
}

func (m *modelManager) changeLocked(percent int) bool {
	return m.faults && m.random.IntN(100) < percent
}

// putLocked records a change of a lease, and tells those that watch.
func (m *modelManager) putLocked(l *dxpuv1.Lease) {
	m.revision++
	l.ResourceVersion = m.revision
	m.leases[l.Id] = l
	for s := range m.streams {
		select {
		case s <- proto.CloneOf(l):
		default: // it is slow: it reads all of them again
			m.breakLocked(s)
		}
	}
}

func (m *modelManager) breakLocked(s chan *dxpuv1.Lease) {
	if m.streams[s] {
		delete(m.streams, s)
		close(s)
	}
}

// step lets time pass: GPUs are attached, lost and released, and ended leases are forgotten.
func (m *modelManager) step() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(m.leases)) {
		l := proto.CloneOf(m.leases[id])
		if l.State != dxpuv1.LeaseState_LEASE_STATE_PENDING {
			delete(m.ends, id)
		} else if m.ends[id].IsZero() {
			m.ends[id] = time.Now().Add(l.Spec.WaitTimeout.AsDuration())
		}
		switch {
		case l.State == dxpuv1.LeaseState_LEASE_STATE_PENDING && m.freeLocked(l):
			l.State, l.StateReason = dxpuv1.LeaseState_LEASE_STATE_BINDING, "GPUs are being attached"
			l.Bindings = []*dxpuv1.Binding{{GpuId: l.Spec.GpuIds[0], HostId: l.Spec.HostId, State: dxpuv1.BindingState_BINDING_STATE_PREPARING}}
		case l.State == dxpuv1.LeaseState_LEASE_STATE_PENDING && time.Now().After(m.ends[id]):
			l.State, l.StateReason = dxpuv1.LeaseState_LEASE_STATE_FAILED, "waited in vain"
		case l.State == dxpuv1.LeaseState_LEASE_STATE_BINDING && m.random.IntN(3) == 0:
			l.State, l.StateReason = dxpuv1.LeaseState_LEASE_STATE_ACTIVE, ""
			l.Bindings[0].State = dxpuv1.BindingState_BINDING_STATE_ATTACHED
			m.served[servedBy(l)] = true
		case l.State == dxpuv1.LeaseState_LEASE_STATE_ACTIVE && m.changeLocked(1):
			m.loseLocked(l)
		case l.State == dxpuv1.LeaseState_LEASE_STATE_RELEASING && m.random.IntN(3) == 0:
			l.State, l.Bindings = dxpuv1.LeaseState_LEASE_STATE_RELEASED, nil
		case ended(l) && m.random.IntN(20) == 0:
			delete(m.leases, id)
			continue
		default:
			continue
		}
		m.putLocked(l)
	}
	if m.changeLocked(5) {
		for s := range m.streams {
			m.breakLocked(s)
		}
	}
}

// servedBy names a lease of a claim: one that is restored may give the ID to another.
func servedBy(l *dxpuv1.Lease) string { return l.Id + " " + l.Spec.Labels[claims.LabelClaim] }

// loseLocked takes the GPU from a lease, in one of the ways there are.
func (m *modelManager) loseLocked(l *dxpuv1.Lease) {
	m.lost[servedBy(l)] = true
	switch m.random.IntN(3) {
	case 0:
		l.State, l.StateReason = dxpuv1.LeaseState_LEASE_STATE_DEGRADED, "the GPU is lost"
	case 1:
		l.State, l.StateReason = dxpuv1.LeaseState_LEASE_STATE_RELEASING, "an operator ended it"
	default:
		l.State, l.StateReason = dxpuv1.LeaseState_LEASE_STATE_PENDING, "preempted"
		l.Bindings[0].State, l.Bindings[0].Reason = dxpuv1.BindingState_BINDING_STATE_RELEASED, dxpuv1.Reason_REASON_PREEMPTED
	}
}

func (m *modelManager) hasLost(l *dxpuv1.Lease) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lost[servedBy(l)]
}

// holds reports whether a lease has its GPU and its slot.
func holds(l *dxpuv1.Lease) bool {
	return l.State != dxpuv1.LeaseState_LEASE_STATE_PENDING && !ended(l)
}

func ended(l *dxpuv1.Lease) bool {
	return l.State == dxpuv1.LeaseState_LEASE_STATE_RELEASED || l.State == dxpuv1.LeaseState_LEASE_STATE_FAILED
}

// freeLocked reports whether a lease may have its GPU and a slot of its host now.
func (m *modelManager) freeLocked(l *dxpuv1.Lease) bool {
	slots := modelSlots
	for _, o := range m.leases {
		if holds(o) && o.Spec.HostId == l.Spec.HostId {
			slots--
		}
		if holds(o) && o.Spec.GpuIds[0] == l.Spec.GpuIds[0] {
			return false
		}
	}
	return slots > 0
}

// restore replaces the leases by those of an earlier time: the manager that returns is another one.
func (m *modelManager) restore() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.backup != nil {
		for id, l := range m.leases {
			if b := m.backup[id]; holds(l) && (b == nil || b.State != dxpuv1.LeaseState_LEASE_STATE_ACTIVE) {
				m.lost[servedBy(l)] = true // it may get a GPU again, but its claim has seen it without
			}
		}
		m.leases = m.backup // but no ID is given again
	}
	m.revision++
	m.restored = m.revision
	m.backup = maps.Clone(m.leases) // a lease that is recorded is not changed any more
	for s := range m.streams {
		m.breakLocked(s)
	}
}

// list returns the leases.
func (m *modelManager) list() (out []*dxpuv1.Lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.listLocked()
}

func (m *modelManager) listLocked() (out []*dxpuv1.Lease) {
	for _, id := range slices.Sorted(maps.Keys(m.leases)) {
		out = append(out, proto.CloneOf(m.leases[id]))
	}
	return out
}

func (m *modelManager) ListLeases(context.Context, *connect.Request[dxpuv1.ListLeasesRequest]) (*connect.Response[dxpuv1.ListLeasesResponse], error) {
	if m.change(5) {
		return nil, errModel
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return connect.NewResponse(&dxpuv1.ListLeasesResponse{Leases: m.listLocked(), Revision: m.revision}), nil
}

func (m *modelManager) WatchLeases(ctx context.Context, req *connect.Request[dxpuv1.WatchLeasesRequest], out *connect.ServerStream[dxpuv1.WatchLeasesResponse]) error {
	s := make(chan *dxpuv1.Lease, 64)
	m.mu.Lock()
	if req.Msg.AfterRevision < m.restored {
		m.mu.Unlock()
		return connect.NewError(connect.CodeOutOfRange, errors.New("that was before the restore"))
	}
	m.streams[s] = true
	missed := m.revision > req.Msg.AfterRevision
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.breakLocked(s)
	}()
	if missed {
		for _, l := range m.list() {
			if err := out.Send(&dxpuv1.WatchLeasesResponse{Lease: l}); err != nil {
				return err
			}
		}
	}
	if err := out.Send(&dxpuv1.WatchLeasesResponse{}); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case l, open := <-s:
			if !open {
				return errModel
			}
			if err := out.Send(&dxpuv1.WatchLeasesResponse{Lease: l}); err != nil {
				return err
			}
		}
	}
}

var errModel = connect.NewError(connect.CodeUnavailable, errors.New("the manager fails now and then"))

// late delays a call, before or after it is carried out, so that its caller may be gone by then.
func (m *modelManager) late() {
	m.mu.Lock()
	var d time.Duration
	if m.changeLocked(20) {
		d = time.Duration(m.random.IntN(8000)) * time.Millisecond
	}
	m.mu.Unlock()
	m.calls.Add(1)
	defer m.calls.Done()
	time.Sleep(d)
}

func (m *modelManager) CreateLease(_ context.Context, req *connect.Request[dxpuv1.CreateLeaseRequest]) (*connect.Response[dxpuv1.CreateLeaseResponse], error) {
	m.late()
	if m.change(5) {
		return nil, errModel
	}
	l, err := m.create(req.Msg)
	m.late()
	if m.change(10) {
		return nil, errModel // though it exists
	}
	return connect.NewResponse(&dxpuv1.CreateLeaseResponse{Lease: l}), err
}

func (m *modelManager) create(r *dxpuv1.CreateLeaseRequest) (*dxpuv1.Lease, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.leases {
		if l.RequestId == r.RequestId && proto.Equal(l.Spec, r.Spec) {
			return proto.CloneOf(l), nil
		} else if l.RequestId == r.RequestId {
			return nil, connect.NewError(connect.CodeAlreadyExists, errors.New("used for another spec"))
		}
	}
	m.last++
	l := &dxpuv1.Lease{Id: fmt.Sprintf("l-%d", m.last), RequestId: r.RequestId, Spec: r.Spec, State: dxpuv1.LeaseState_LEASE_STATE_PENDING, StateReason: "in the queue"}
	m.putLocked(l)
	return proto.CloneOf(l), nil
}

func (m *modelManager) DeleteLease(_ context.Context, req *connect.Request[dxpuv1.DeleteLeaseRequest]) (*connect.Response[dxpuv1.DeleteLeaseResponse], error) {
	m.late()
	if m.change(5) {
		return nil, errModel
	}
	m.mu.Lock()
	l := proto.CloneOf(m.leases[req.Msg.LeaseId])
	m.mu.Unlock()
	if l == nil {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("no such lease"))
	}
	m.deleting(l)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch l = proto.CloneOf(m.leases[req.Msg.LeaseId]); {
	case l == nil:
		return nil, connect.NewError(connect.CodeNotFound, errors.New("no such lease"))
	case l.State == dxpuv1.LeaseState_LEASE_STATE_PENDING:
		l.State = dxpuv1.LeaseState_LEASE_STATE_RELEASED
		m.putLocked(l)
	case !ended(l) && l.State != dxpuv1.LeaseState_LEASE_STATE_RELEASING:
		l.State = dxpuv1.LeaseState_LEASE_STATE_RELEASING
		m.putLocked(l)
	}
	if m.changeLocked(10) {
		return nil, errModel
	}
	return connect.NewResponse(&dxpuv1.DeleteLeaseResponse{Lease: proto.CloneOf(l)}), nil
}

func (m *modelManager) GetLease(_ context.Context, req *connect.Request[dxpuv1.GetLeaseRequest]) (*connect.Response[dxpuv1.GetLeaseResponse], error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := m.leases[req.Msg.LeaseId]; l != nil {
		return connect.NewResponse(&dxpuv1.GetLeaseResponse{Lease: proto.CloneOf(l)}), nil
	}
	return nil, connect.NewError(connect.CodeNotFound, errors.New("no such lease"))
}

func (m *modelManager) ListGPUs(context.Context, *connect.Request[dxpuv1.ListGPUsRequest]) (*connect.Response[dxpuv1.ListGPUsResponse], error) {
	by := map[string]*dxpuv1.Lease{}
	for _, l := range m.list() {
		if holds(l) {
			by[l.Spec.GpuIds[0]] = l
		}
	}
	res := &dxpuv1.ListGPUsResponse{}
	for _, id := range modelDevices() {
		box, _, _ := strings.Cut(id, "/")
		g := &dxpuv1.GPU{Id: id, BoxId: box, Device: &dxpuv1.Device{Model: "H100"}, Health: dxpuv1.Health_HEALTH_OK, State: dxpuv1.GPUState_GPU_STATE_FREE}
		if l := by[id]; l != nil {
			g.State, g.LeaseId, g.HostId = dxpuv1.GPUState_GPU_STATE_BOUND, l.Id, l.Spec.HostId
			if l.State == dxpuv1.LeaseState_LEASE_STATE_RELEASING {
				g.State = dxpuv1.GPUState_GPU_STATE_RELEASING
			}
		}
		res.Gpus = append(res.Gpus, g)
	}
	return connect.NewResponse(res), nil
}

// modelDevices returns the IDs of all GPUs.
func modelDevices() (out []string) {
	for b := range modelBoxes {
		for s := range modelGPUs {
			out = append(out, fmt.Sprintf("b%d/%d", b+1, s))
		}
	}
	return out
}

func (m *modelManager) ListHosts(context.Context, *connect.Request[dxpuv1.ListHostsRequest]) (*connect.Response[dxpuv1.ListHostsResponse], error) {
	silent := m.change(5) // as after a change of the leader
	all, res := m.list(), &dxpuv1.ListHostsResponse{}
	for i := range modelHosts {
		h := &dxpuv1.Host{Node: node(fmt.Sprintf("h%d", i+1), silent)}
		for _, l := range all {
			if holds(l) && l.Spec.HostId == h.Node.Id {
				h.Slots = append(h.Slots, &dxpuv1.HostSlot{Slot: uint32(len(h.Slots)), BindingId: "b-" + l.Id, LeaseId: l.Id})
			}
		}
		for len(h.Slots) < modelSlots {
			h.Slots = append(h.Slots, &dxpuv1.HostSlot{Slot: uint32(len(h.Slots))})
		}
		res.Hosts = append(res.Hosts, h)
	}
	return connect.NewResponse(res), nil
}

func (m *modelManager) ListBoxes(context.Context, *connect.Request[dxpuv1.ListBoxesRequest]) (*connect.Response[dxpuv1.ListBoxesResponse], error) {
	res := &dxpuv1.ListBoxesResponse{}
	for i := range modelBoxes {
		res.Boxes = append(res.Boxes, &dxpuv1.Box{Node: node(fmt.Sprintf("b%d", i+1), false)})
	}
	return connect.NewResponse(res), nil
}
