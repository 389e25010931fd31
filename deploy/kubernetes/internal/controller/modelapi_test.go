package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

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

// late delays a call, before or after it is carried out, so that its caller may be gone by then. It
// reports whether the manager that was called is still there: one that is restored is another one.
func (m *modelManager) late() bool {
	m.mu.Lock()
	var d time.Duration
	if m.changeLocked(20) {
		d = time.Duration(m.random.IntN(8000)) * time.Millisecond
	}
	called := m.restored
	m.mu.Unlock()
	m.calls.Add(1)
	defer m.calls.Done()
	time.Sleep(d)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.restored == called
}

func (m *modelManager) CreateLease(_ context.Context, req *connect.Request[dxpuv1.CreateLeaseRequest]) (*connect.Response[dxpuv1.CreateLeaseResponse], error) {
	if !m.late() || m.change(5) {
		return nil, errModel
	}
	if err := m.tenantErr(); err != nil {
		return nil, err
	}
	if err := wrongPart(req.Msg.Spec); err != nil {
		return nil, err
	}
	l, err := m.create(req.Msg)
	if !m.late() || m.change(10) {
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
	if !m.late() || m.change(5) {
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

// WatchEvents sends an event after changes of leases: GPUs and hosts are other ones then.
func (m *modelManager) WatchEvents(ctx context.Context, _ *connect.Request[dxpuv1.WatchEventsRequest], out *connect.ServerStream[dxpuv1.WatchEventsResponse]) error {
	changed := make(chan struct{}, 1)
	m.mu.Lock()
	m.events[changed] = true
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.events, changed)
	}()
	for first := true; ; first = false {
		res := &dxpuv1.WatchEventsResponse{}
		if !first {
			res.Event = &dxpuv1.Event{}
		}
		if err := out.Send(res); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
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
	all := m.list()
	res := &dxpuv1.ListGPUsResponse{}
	for _, d := range modelGPUs() {
		g := &dxpuv1.GPU{
			Id: d.id, BoxId: d.box.id, LocalHost: d.box.host, Health: dxpuv1.Health_HEALTH_OK, State: dxpuv1.GPUState_GPU_STATE_FREE,
			Device: &dxpuv1.Device{Model: "H100", MemoryBytes: modelMemory, Serial: "GPU-" + d.id}, FreeMemoryBytes: modelMemory, FreeCompute: modelCompute,
		}
		if d.box.mode != 0 {
			g.Device.ShareModes, g.FreeParts = []dxpuv1.ShareMode{d.box.mode}, 8
		}
		for _, l := range all {
			if holds(l) && slices.Contains(l.Spec.GpuIds, d.id) {
				take(g, l)
			}
		}
		if g = m.ailing(g); g != nil {
			res.Gpus = append(res.Gpus, g)
		}
	}
	return connect.NewResponse(res), nil
}

// take shows in a GPU that a lease has it, or a part of it.
func take(g *dxpuv1.GPU, l *dxpuv1.Lease) {
	leaving := l.State == dxpuv1.LeaseState_LEASE_STATE_RELEASING
	if p := l.Spec.Part; p != nil {
		g.State = dxpuv1.GPUState_GPU_STATE_SHARED
		g.FreeMemoryBytes, g.FreeCompute, g.FreeParts = g.FreeMemoryBytes-p.MemoryBytes, g.FreeCompute-p.Compute, g.FreeParts-1
		g.Parts = append(g.Parts, &dxpuv1.GPUPart{Id: g.Id + "00", Part: p, LeaseId: l.Id, HostId: l.Spec.HostId, Serving: !leaving})
		return
	}
	g.State, g.LeaseId, g.HostId = dxpuv1.GPUState_GPU_STATE_BOUND, l.Id, l.Spec.HostId
	g.FreeMemoryBytes, g.FreeCompute, g.FreeParts = 0, 0, 0
	if leaving {
		g.State = dxpuv1.GPUState_GPU_STATE_RELEASING
	}
}

func (m *modelManager) ListHosts(context.Context, *connect.Request[dxpuv1.ListHostsRequest]) (*connect.Response[dxpuv1.ListHostsResponse], error) {
	silent := m.change(5) // as after a change of the leader
	all, res := m.list(), &dxpuv1.ListHostsResponse{}
	for i := range modelHosts {
		h := &dxpuv1.Host{Node: m.lostNode(node(fmt.Sprintf("h%d", i+1), silent))}
		for _, b := range modelBoxes {
			if b.host == h.Node.Id {
				h.Node.LocalPeer = b.id
			}
		}
		for _, l := range all {
			for range l.Spec.Count {
				if holds(l) && l.Spec.HostId == h.Node.Id {
					h.Slots = append(h.Slots, &dxpuv1.HostSlot{Slot: uint32(len(h.Slots)), BindingId: "b-" + l.Id, LeaseId: l.Id})
				}
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
	for _, b := range modelBoxes {
		res.Boxes = append(res.Boxes, &dxpuv1.Box{Node: m.lostNode(node(b.id, false))})
	}
	return connect.NewResponse(res), nil
}
