package web

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/internal/pool/manager"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

const joinToken = "token-for-tests"

// lostAfter is long enough that no node is lost on a slow machine. Tests that need a
// lost node advance the world's clock.
const lostAfter = time.Hour

// world is a manager with simulated nodes and its pages.
type world struct {
	t      testing.TB
	m      *manager.Manager
	pages  http.Handler
	url    string
	pool   dxpuv1connect.PoolServiceClient
	nodes  dxpuv1connect.NodeServiceClient
	offset atomic.Int64 // nanoseconds from the machine's clock to the manager's

	mu  sync.Mutex
	all []*simNode
}

// simNode is a simulated proxy. It applies its desired state with its next report.
type simNode struct {
	id, rack, model string
	kind            dxpuv1.NodeKind
	boxKind         dxpuv1.BoxKind
	slots, empty    int
	divided         int // parts that each GPU has slots for
	silent, deaf    bool
	movable         bool // its devices can move to another box
	health          map[uint32]dxpuv1.Health
	detail          map[uint32]string
	errors          map[uint32][]*dxpuv1.DeviceError
	cluster         string
	credential      string
	sequence        uint64
	applied         uint64
	watch           *connect.ServerStreamForClient[dxpuv1.DesiredState]
	desired         *dxpuv1.DesiredState // the last that the watch brought
	has             map[uint32]*dxpuv1.ObservedBinding
}

// newWorld starts a world whose clock is behind the machine's by ago.
func newWorld(t testing.TB, ago time.Duration, nodes ...*simNode) *world {
	t.Helper()
	w := &world{t: t}
	w.offset.Store(int64(-ago))
	m, err := manager.New(t.Context(), manager.Config{
		JoinToken: joinToken, Open: manager.OpenLoopback, LostAfter: lostAfter, Reserve: placement.Reserve{Count: 2}, Version: "v0.4.0",
		UnplugTimeout: 48 * time.Hour, AttachTimeout: 48 * time.Hour, Now: w.now,
	})
	if err != nil {
		t.Fatal(err)
	}
	w.m, w.pages = m, Handler(m.Handler())
	srv := httptest.NewServer(w.pages)
	t.Cleanup(srv.Close)
	t.Cleanup(srv.CloseClientConnections) // close the streams of browsers
	w.url = srv.URL
	w.pool = dxpuv1connect.NewPoolServiceClient(http.DefaultClient, srv.URL)
	w.nodes = dxpuv1connect.NewNodeServiceClient(callsHere{w.pages}, srv.URL)
	for _, n := range nodes {
		w.add(n)
	}
	w.settle()
	return w
}

// callsHere makes calls of a handler without the network, except for watches, which need a
// connection. The nodes of a busy world report three thousand times.
type callsHere struct{ handler http.Handler }

// Do implements connect.HTTPClient.
func (c callsHere) Do(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/WatchDesired") {
		return http.DefaultClient.Do(r)
	}
	r = r.Clone(r.Context())
	r.RemoteAddr = "127.0.0.1:1000"
	res := httptest.NewRecorder()
	c.handler.ServeHTTP(res, r)
	return res.Result(), nil
}

func (w *world) now() time.Time { return time.Now().Add(time.Duration(w.offset.Load())) }

// advance advances the manager's clock. All nodes that are not silent report meanwhile.
func (w *world) advance(d time.Duration) {
	w.t.Helper()
	for d > 0 {
		step := min(d, lostAfter/2)
		w.offset.Add(int64(step))
		d -= step
		w.round()
	}
}

func (w *world) add(n *simNode) {
	w.t.Helper()
	n.has = map[uint32]*dxpuv1.ObservedBinding{}
	n.health, n.detail, n.errors = map[uint32]dxpuv1.Health{}, map[uint32]string{}, map[uint32][]*dxpuv1.DeviceError{}
	res, err := w.nodes.Enroll(w.t.Context(), connect.NewRequest(&dxpuv1.EnrollRequest{JoinToken: joinToken, Kind: n.kind, Name: n.id, Version: "v0.4.0"}))
	if err != nil {
		w.t.Fatal(err)
	}
	n.cluster, n.credential = res.Msg.ClusterId, res.Msg.Credential
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, n)
}

func (w *world) node(id string) *simNode {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.all {
		if n.id == id {
			return n
		}
	}
	w.t.Fatalf("no node %s", id)
	return nil
}

// settle lets all nodes report and apply their desired state until nothing changes.
func (w *world) settle() {
	w.t.Helper()
	for range 5 {
		w.round()
	}
}

func (w *world) round() {
	w.t.Helper()
	w.mu.Lock()
	for _, n := range w.all {
		w.report(n)
	}
	w.mu.Unlock()
	if err := w.m.Tick(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) report(n *simNode) {
	w.t.Helper()
	if n.silent {
		return
	}
	if n.watch == nil && !n.deaf {
		w.watch(n)
	}
	req := connect.NewRequest(&dxpuv1.ReportRequest{State: w.observe(n)})
	req.Header().Set("Authorization", "Bearer "+n.credential)
	res, err := w.nodes.Report(w.t.Context(), req)
	if err != nil {
		w.t.Fatalf("report of %s: %v", n.id, err)
	}
	if !n.deaf {
		w.apply(n, res.Msg.DesiredRevision)
	}
}

// watch opens the watch of a node, which has no binding yet. The answers to reports name
// the newest revision only to nodes with a watch, so it returns when the manager has it: a
// revision that the node cannot know makes the manager send the present state at once.
func (w *world) watch(n *simNode) {
	w.t.Helper()
	req := connect.NewRequest(&dxpuv1.WatchDesiredRequest{NodeId: n.id, ClusterId: n.cluster, KnownRevision: math.MaxUint64})
	req.Header().Set("Authorization", "Bearer "+n.credential)
	var err error
	if n.watch, err = w.nodes.WatchDesired(w.t.Context(), req); err != nil {
		w.t.Fatalf("watch of %s: %v", n.id, err)
	}
	w.receive(n)
}

func (w *world) receive(n *simNode) {
	w.t.Helper()
	if !n.watch.Receive() {
		w.t.Fatalf("watch of %s: %v", n.id, n.watch.Err())
	}
	n.desired = n.watch.Msg()
}

// apply applies the newest desired state to a node, if it is new there.
func (w *world) apply(n *simNode, newest uint64) {
	w.t.Helper()
	if newest <= n.applied {
		return
	}
	for n.desired.Revision < newest {
		w.receive(n)
	}
	d := n.desired
	n.applied = d.Revision
	had := n.has
	begin := w.now()
	n.has = map[uint32]*dxpuv1.ObservedBinding{}
	for i, b := range d.Bindings {
		if old := had[b.Slot]; old != nil && old.BindingId == b.BindingId {
			n.has[b.Slot], old.Part = old, b.Part
			continue
		}
		o := &dxpuv1.ObservedBinding{BindingId: b.BindingId, Epoch: b.Epoch, Part: b.Part, Counters: &dxpuv1.Counters{RttNs: 17_300 + 450*uint64(b.Epoch) + 90*uint64(i)}}
		step := func(name string, after, took time.Duration) {
			o.Steps = append(o.Steps, &dxpuv1.Step{Name: name, Time: timestamppb.New(begin.Add(after)), Duration: durationpb.New(took)})
		}
		if n.kind == dxpuv1.NodeKind_NODE_KIND_BOX {
			o.State = dxpuv1.BindingState_BINDING_STATE_READY
			step("reset", 41*time.Millisecond, 41*time.Millisecond)
			step("link_open", 43*time.Millisecond, 2*time.Millisecond)
		} else {
			o.State = dxpuv1.BindingState_BINDING_STATE_ATTACHED
			step("link_up", 13*time.Millisecond, 13*time.Millisecond)
			step("device_add", 75*time.Millisecond, 62*time.Millisecond)
		}
		w.offset.Store(max(w.offset.Load(), int64(time.Until(begin)+80*time.Millisecond))) // the duration of an attach
		for p := range uint32(2) {
			o.Paths = append(o.Paths, &dxpuv1.PathStatus{Path: p, Health: dxpuv1.Health_HEALTH_OK, RttNs: o.Counters.RttNs + 800*uint64(p)})
		}
		n.has[b.Slot] = o
	}
}

func (w *world) observe(n *simNode) *dxpuv1.ObservedState {
	n.sequence++
	o := &dxpuv1.ObservedState{
		NodeId: n.id, InstanceId: "1", Sequence: n.sequence, AppliedRevision: n.applied, Rack: n.rack, Version: "v0.4.0",
		BoxKind: n.boxKind, Labels: map[string]string{"zone": "a"},
	}
	for p := range uint32(2) {
		o.Addresses = append(o.Addresses, &dxpuv1.PathAddress{Path: p, Address: fmt.Sprintf("10.%d.0.7:7471", p), Network: fmt.Sprintf("fabric-%c", 'a'+p)})
	}
	for i := range uint32(n.slots + n.empty + n.slots*n.divided) {
		s := &dxpuv1.ObservedSlot{Slot: i, Health: max(n.health[i], dxpuv1.Health_HEALTH_OK), HealthDetail: n.detail[i], Errors: n.errors[i], Movable: n.movable}
		if n.kind == dxpuv1.NodeKind_NODE_KIND_BOX && int(i) < n.slots {
			s.Device = &dxpuv1.Device{
				Model: n.model, MemoryBytes: 80 << 30, Serial: fmt.Sprintf("SN-%s-%02d", n.id, i), VendorId: 0x1d1d, DeviceId: 0x100,
				PcieSwitch: fmt.Sprintf("sw%d", i/4),
			}
			if n.boxKind == dxpuv1.BoxKind_BOX_KIND_NVLINK {
				s.Device.NvlinkDomain = "nv0"
			}
			if n.divided > 0 {
				s.Device.ShareModes = []dxpuv1.ShareMode{dxpuv1.ShareMode_SHARE_MODE_TIME}
			}
		}
		if p := int(i) - n.slots - n.empty; p >= 0 {
			s.Device, s.PartOf = &dxpuv1.Device{Model: n.model}, proto.Uint32(uint32(p/n.divided))
		}
		if b := n.has[i]; b != nil {
			s.Binding = b
			b.Counters.TlpsSent += 11_000 * b.Epoch
			b.Counters.TlpsReceived += 12_500 * b.Epoch
			b.Counters.BytesSent += 2_700_000 * b.Epoch
			b.Counters.BytesReceived += 1_900_000 * b.Epoch
		}
		o.Slots = append(o.Slots, s)
	}
	return o
}

func box(id, rack, model string, kind dxpuv1.BoxKind, slots, empty int) *simNode {
	return &simNode{id: id, rack: rack, model: model, kind: dxpuv1.NodeKind_NODE_KIND_BOX, boxKind: kind, slots: slots, empty: empty}
}

func host(id, rack string, slots int) *simNode {
	return &simNode{id: id, rack: rack, kind: dxpuv1.NodeKind_NODE_KIND_HOST, slots: slots}
}

func (w *world) lease(spec *dxpuv1.LeaseSpec) string {
	w.t.Helper()
	id := w.create(spec)
	w.settle()
	return id
}

func (w *world) create(spec *dxpuv1.LeaseSpec) string {
	w.t.Helper()
	spec.Wait = true
	res, err := w.pool.CreateLease(w.t.Context(), connect.NewRequest(&dxpuv1.CreateLeaseRequest{Spec: spec}))
	if err != nil {
		w.t.Fatal(err)
	}
	return res.Msg.Lease.Id
}

func (w *world) cordon(target *dxpuv1.Target, why string) {
	w.t.Helper()
	if _, err := w.pool.Cordon(w.t.Context(), connect.NewRequest(&dxpuv1.CordonRequest{Target: target, Reason: why})); err != nil {
		w.t.Fatal(err)
	}
}

const (
	nvlink = dxpuv1.BoxKind_BOX_KIND_NVLINK
	pcie   = dxpuv1.BoxKind_BOX_KIND_PCIE_SWITCH
)

// busyWorld has 64 GPUs in four racks, in all states: a box that does not report, a GPU
// that failed and was replaced, others that are being released or are cordoned, and a
// queue. It returns the lease whose GPU was replaced.
func busyWorld(t testing.TB) (w *world, replaced string) {
	t.Helper()
	var nodes []*simNode
	for r := 1; r <= 4; r++ {
		rack := fmt.Sprintf("r%d", r)
		nodes = append(nodes, box(rack+"-nv", rack, "DX200", nvlink, 8, 0), box(rack+"-sw", rack, "DX100", pcie, 8, 2*(r/4)))
	}
	for h := 1; h <= 10; h++ {
		rack := "r1" // leases get GPUs near their hosts: the first boxes fill up
		if h == 2 || h == 3 {
			rack = "r2"
		}
		nodes = append(nodes, host(fmt.Sprintf("h%02d", h), rack, 8))
	}
	w = newWorld(t, 40*time.Hour, nodes...)
	required := dxpuv1.Preference_PREFERENCE_REQUIRED
	w.lease(&dxpuv1.LeaseSpec{Count: 8, Model: "DX200", Nvlink: required, HostId: "h01", Tenant: "vision"})
	w.advance(21 * time.Hour)
	w.lease(&dxpuv1.LeaseSpec{Count: 4, Model: "DX200", Nvlink: required, HostId: "h02", Tenant: "vision"})
	replaced = w.lease(&dxpuv1.LeaseSpec{Count: 4, Model: "DX200", SameBox: dxpuv1.Preference_PREFERENCE_PREFERRED, HostId: "h03", Tenant: "research", Priority: 10})
	w.advance(5 * time.Hour)
	for i := range 9 {
		w.lease(&dxpuv1.LeaseSpec{Count: uint32(1 + i%2), Model: "DX100", HostId: fmt.Sprintf("h%02d", 4+i%6), Tenant: "speech"})
		w.advance(67 * time.Minute)
	}
	going := w.lease(&dxpuv1.LeaseSpec{Count: 2, Model: "DX100", HostId: "h10", Tenant: "batch", Preemptible: true, Priority: -20})
	w.cordon(&dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: "r2-sw/6"}}, "fan to be exchanged")
	w.cordon(&dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: "r2-sw/7"}}, "fan to be exchanged")
	w.advance(2 * time.Hour)

	l, err := w.pool.GetLease(t.Context(), connect.NewRequest(&dxpuv1.GetLeaseRequest{LeaseId: replaced}))
	if err != nil {
		t.Fatal(err)
	}
	b := l.Msg.Lease.Bindings[1]
	w.fail(b.BoxId, b.BoxSlot, dxpuv1.Health_HEALTH_FAILED, "fallen off the bus", &dxpuv1.DeviceError{Code: 79, Count: 1, Detail: "fallen off the bus", LastTime: timestamppb.New(w.now())})
	w.settle()
	w.fail("r4-sw", 5, dxpuv1.Health_HEALTH_DEGRADED, "link at x8 of x16", &dxpuv1.DeviceError{Code: 48, Count: 3, Detail: "double-bit error", LastTime: timestamppb.New(w.now())})
	w.settle()
	w.advance(25 * time.Minute)

	w.node("h10").deaf = true // its guest does not release the GPU
	if _, err := w.pool.DeleteLease(t.Context(), connect.NewRequest(&dxpuv1.DeleteLeaseRequest{LeaseId: going})); err != nil {
		t.Fatal(err)
	}
	w.lease(&dxpuv1.LeaseSpec{Count: 16, Model: "DX200", Nvlink: required, HostId: "h09", Tenant: "vision", Priority: 20})
	w.advance(4 * time.Minute)
	w.lease(&dxpuv1.LeaseSpec{Count: 8, Model: "DX100", SameBox: required, HostId: "h10", Tenant: "research"})

	w.node("r1-sw").silent = true
	w.advance(-time.Duration(w.offset.Load()) - 12*time.Second)
	w.lease(&dxpuv1.LeaseSpec{Count: 2, Model: "DX100", HostId: "h08", Tenant: "speech"})
	w.advance(12 * time.Second)
	return w, replaced
}

func (w *world) fail(box string, slot uint32, h dxpuv1.Health, detail string, e *dxpuv1.DeviceError) {
	n := w.node(box)
	w.mu.Lock()
	defer w.mu.Unlock()
	n.health[slot], n.detail[slot] = h, detail
	n.errors[slot] = []*dxpuv1.DeviceError{e}
}

// idleWorld has boxes with eight GPUs each in racks, and as many hosts, without leases.
func idleWorld(t testing.TB, boxes, perRack int) *world {
	t.Helper()
	w := newWorld(t, 0)
	for i := range boxes {
		rack := fmt.Sprintf("rack-%02d", 1+i/perRack)
		for _, n := range []*simNode{box(fmt.Sprintf("box-%02d", i+1), rack, "DX200", nvlink, 8, 0), host(fmt.Sprintf("host-%02d", i+1), rack, 8)} {
			w.add(n)
			n.deaf = true // a watch of each of 25,000 nodes would be too many open files
			w.report(n)
			n.deaf = false
		}
	}
	return w
}
