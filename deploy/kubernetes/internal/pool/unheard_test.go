package pool

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// TestUnheardGPU: a GPU whose box has not reported to a new leader stays as it was, but for what the
// leader knows of it by itself.
func TestUnheardGPU(t *testing.T) {
	const ok, unreachable, degraded = dxpuv1.Health_HEALTH_OK, dxpuv1.Health_HEALTH_UNREACHABLE, dxpuv1.Health_HEALTH_DEGRADED
	const free, unavailable, bound, inParts = dxpuv1.GPUState_GPU_STATE_FREE, dxpuv1.GPUState_GPU_STATE_UNAVAILABLE, dxpuv1.GPUState_GPU_STATE_BOUND, dxpuv1.GPUState_GPU_STATE_SHARED
	parts := []*dxpuv1.GPUPart{{Id: "b1/1"}, {Id: "b1/2"}}
	for name, test := range map[string]struct {
		was, now, want *dxpuv1.GPU
		lost           bool
	}{
		"free":             {was: &dxpuv1.GPU{Health: ok, State: free}, now: &dxpuv1.GPU{State: unavailable}, want: &dxpuv1.GPU{Health: ok, State: free}},
		"degraded":         {was: &dxpuv1.GPU{Health: degraded, State: unavailable}, now: &dxpuv1.GPU{State: unavailable}, want: &dxpuv1.GPU{Health: degraded, State: unavailable}},
		"cordoned since":   {was: &dxpuv1.GPU{Health: ok, State: free}, now: &dxpuv1.GPU{State: unavailable, Cordoned: true}, want: &dxpuv1.GPU{Health: ok, State: unavailable, Cordoned: true}},
		"of a lease":       {was: &dxpuv1.GPU{Health: ok, State: bound, LeaseId: "l"}, now: &dxpuv1.GPU{State: bound, LeaseId: "l"}, want: &dxpuv1.GPU{Health: ok, State: bound, LeaseId: "l"}},
		"given back since": {was: &dxpuv1.GPU{Health: ok, State: bound, LeaseId: "l"}, now: &dxpuv1.GPU{State: unavailable}, want: &dxpuv1.GPU{Health: ok, State: free}},
		"in parts":         {was: &dxpuv1.GPU{Health: ok, State: inParts, FreeParts: 2, Parts: parts}, now: &dxpuv1.GPU{State: inParts, Parts: parts[:1]}, want: &dxpuv1.GPU{Health: ok, State: inParts, FreeParts: 3, Parts: parts[:1]}},
		"silent before":    {was: &dxpuv1.GPU{Health: unreachable, State: unavailable}, now: &dxpuv1.GPU{State: unavailable}, want: &dxpuv1.GPU{Health: unreachable, State: unavailable}},
		"of a lost box":    {was: &dxpuv1.GPU{Health: ok, State: free}, now: &dxpuv1.GPU{State: unavailable}, lost: true, want: &dxpuv1.GPU{Health: unreachable, State: unavailable}},
	} {
		t.Run(name, func(t *testing.T) {
			w := New(nil, "c", nil, nil)
			for _, g := range []*dxpuv1.GPU{test.was, test.now, test.want} {
				g.Id, g.BoxId = "b1/0", "b1"
			}
			test.now.Health = unreachable
			w.SetSnapshot(&Snapshot{GPUs: []*dxpuv1.GPU{test.was}, LostBoxes: map[string]bool{"b1": true}})
			w.SetSnapshot(&Snapshot{GPUs: []*dxpuv1.GPU{test.now}, LostBoxes: map[string]bool{"b1": test.lost}})
			if got := w.Snapshot().GPU("b1/0"); !proto.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// TestUnheardTime: nodes have ten seconds to report from the time that a leader does not know them,
// or from the return of the manager if that is later. The spares are those of before meanwhile.
func TestUnheardTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(nil, "c", nil, nil)
		read := func(when string, reported, want bool) {
			t.Helper()
			h := &dxpuv1.Host{Node: &dxpuv1.NodeInfo{Id: "h1", Connected: reported}}
			g := &dxpuv1.GPU{Id: "b1/0", BoxId: "b1", Health: dxpuv1.Health_HEALTH_UNREACHABLE}
			var spares []*dxpuv1.SpareStatus
			if reported {
				h.Node.LastReportTime, g.Health, spares = timestamppb.Now(), dxpuv1.Health_HEALTH_OK, []*dxpuv1.SpareStatus{{}}
			}
			w.SetSnapshot(&Snapshot{Hosts: map[string]*dxpuv1.Host{"h1": h}, GPUs: []*dxpuv1.GPU{g}, Spares: spares})
			if s := w.Snapshot(); s.Hosts["h1"].Node.Connected != want || (s.GPU("b1/0").Health == dxpuv1.Health_HEALTH_OK) != want || (len(s.Spares) > 0) != want {
				t.Errorf("%s: host %v, GPU %v, spares %v; want them as before: %v", when, s.Hosts["h1"], s.GPU("b1/0"), s.Spares, want)
			}
		}
		wantIn := func(want time.Duration) {
			t.Helper()
			if in := w.refreshIn(); in != want {
				t.Errorf("the GPUs are read after %v, want %v", in, want)
			}
		}
		read("at first", true, true)
		wantIn(refreshEvery)
		read("another leads", false, true)
		time.Sleep(4 * time.Second)
		read("soon", false, true)
		wantIn(6 * time.Second)
		w.lost()
		time.Sleep(time.Hour)
		read("away", false, true)
		wantIn(reconnectTime)
		w.replace(nil)
		wantIn(reconnectTime)
		time.Sleep(reconnectTime - 1)
		read("returned", false, true)
		wantIn(1)
		time.Sleep(1)
		read("silent", false, false)
		wantIn(refreshEvery)
		w.lost()
		w.replace(nil)
		read("silent, and another leads", false, false)
		read("reports", true, true)
		read("yet another leads", false, true)
		wantIn(reconnectTime)
	})
}

// TestUnheardAtFirst: the first snapshots do not say of a node that has not reported to the manager
// how it is, and are incomplete for as long, at most ten seconds.
func TestUnheardAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(nil, "c", nil, nil)
		read := func(when string, reported bool, health dxpuv1.Health, complete bool) {
			t.Helper()
			h := &dxpuv1.Host{Node: &dxpuv1.NodeInfo{Id: "h1"}}
			silent := &dxpuv1.GPU{Id: "b1/0", BoxId: "b1", Health: dxpuv1.Health_HEALTH_UNREACHABLE}
			lost := &dxpuv1.GPU{Id: "b2/0", BoxId: "b2", Health: dxpuv1.Health_HEALTH_UNREACHABLE}
			if reported {
				silent.Health, h.Node.Connected, h.Node.LastReportTime = dxpuv1.Health_HEALTH_OK, true, timestamppb.Now()
			}
			w.SetSnapshot(&Snapshot{Hosts: map[string]*dxpuv1.Host{"h1": h}, GPUs: []*dxpuv1.GPU{silent, lost}, LostBoxes: map[string]bool{"b2": true}})
			s := w.Snapshot()
			if s.GPU("b1/0").Health != health || s.GPU("b2/0").Health != dxpuv1.Health_HEALTH_UNREACHABLE || s.Hosts["h1"].Node.Connected != reported || w.Complete() != complete {
				t.Errorf("%s: complete %v, host %v, GPUs %v", when, w.Complete(), s.Hosts["h1"], s.GPUs)
			}
		}
		w.replace(nil)
		read("at first", false, dxpuv1.Health_HEALTH_UNSPECIFIED, false)
		time.Sleep(reconnectTime - 1)
		read("soon", false, dxpuv1.Health_HEALTH_UNSPECIFIED, false)
		time.Sleep(1)
		read("later", false, dxpuv1.Health_HEALTH_UNREACHABLE, true)
		read("it reports", true, dxpuv1.Health_HEALTH_OK, true)

		w = New(nil, "c", nil, nil)
		w.replace(nil)
		read("at first again", false, dxpuv1.Health_HEALTH_UNSPECIFIED, false)
		read("it reports soon", true, dxpuv1.Health_HEALTH_OK, true)
	})
}

// TestSettled: a manager that has led for long enough knows which nodes are off, so the first snapshot is
// complete, and their hosts take no claims.
func TestSettled(t *testing.T) {
	for _, settled := range []bool{false, true} {
		w := New(nil, "c", nil, nil)
		w.replace(nil)
		g := &dxpuv1.GPU{Id: "b1/0", BoxId: "b1", Health: dxpuv1.Health_HEALTH_UNREACHABLE}
		w.SetSnapshot(&Snapshot{began: time.Now(), Hosts: map[string]*dxpuv1.Host{"h1": {Node: &dxpuv1.NodeInfo{Id: "h1"}, Slots: []*dxpuv1.HostSlot{{}}}}, GPUs: []*dxpuv1.GPU{g}, Settled: settled})
		known := w.Snapshot().GPU("b1/0").Health == dxpuv1.Health_HEALTH_UNREACHABLE
		if shut := w.HostShut("h1", Need{Slots: 1}) != ""; w.Complete() != settled || known != settled || shut != settled {
			t.Errorf("settled: %v; complete %v, health known %v, host shut %v", settled, w.Complete(), known, shut)
		}
	}
}

// TestLostBeforeTheReturn: a host that an earlier leader had lost may report to the present one. A
// snapshot says nothing of it whose read began before the manager went away.
func TestLostBeforeTheReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(nil, "c", nil, nil)
		w.replace(nil)
		read := func() *Snapshot {
			lost := &dxpuv1.NodeInfo{Id: "h1", LastReportTime: timestamppb.Now()}
			return &Snapshot{began: time.Now(), Hosts: map[string]*dxpuv1.Host{"h1": {Node: lost, Slots: []*dxpuv1.HostSlot{{}}}}}
		}
		before := read()
		time.Sleep(time.Second)
		w.lost()
		time.Sleep(time.Second)
		w.replace(nil)
		for _, test := range []struct {
			s    *Snapshot
			want string
		}{{before, ""}, {read(), "host h1 does not report"}} {
			w.SetSnapshot(test.s)
			if got := w.HostShut("h1", Need{Slots: 1}); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		}
	})
}

// changing is a manager without nodes whose pool changes while it lists them.
type changing struct {
	dxpuv1connect.PoolServiceClient
	pool, next *dxpuv1.Pool
}

func (c *changing) ListGPUs(context.Context, *connect.Request[dxpuv1.ListGPUsRequest]) (*connect.Response[dxpuv1.ListGPUsResponse], error) {
	c.pool = c.next
	return connect.NewResponse(&dxpuv1.ListGPUsResponse{}), nil
}

func (*changing) ListHosts(context.Context, *connect.Request[dxpuv1.ListHostsRequest]) (*connect.Response[dxpuv1.ListHostsResponse], error) {
	return connect.NewResponse(&dxpuv1.ListHostsResponse{}), nil
}

func (*changing) ListBoxes(context.Context, *connect.Request[dxpuv1.ListBoxesRequest]) (*connect.Response[dxpuv1.ListBoxesResponse], error) {
	return connect.NewResponse(&dxpuv1.ListBoxesResponse{}), nil
}

func (c *changing) GetPool(context.Context, *connect.Request[dxpuv1.GetPoolRequest]) (*connect.Response[dxpuv1.GetPoolResponse], error) {
	return connect.NewResponse(&dxpuv1.GetPoolResponse{Pool: c.pool}), nil
}

// TestSettledAtTheLists: one manager has to have led for long before the lists and after them. They
// may take seconds, and another manager may answer some.
func TestSettledAtTheLists(t *testing.T) {
	yes, no, other := &dxpuv1.Pool{LeaderId: "m1", NodesSettled: true}, &dxpuv1.Pool{LeaderId: "m1"}, &dxpuv1.Pool{LeaderId: "m2", NodesSettled: true}
	for name, test := range map[string]struct {
		before, after *dxpuv1.Pool
		want          bool
	}{
		"for long":            {yes, yes, true},
		"for long since":      {no, yes, false},
		"started again":       {yes, no, false},
		"another, and slowly": {yes, other, false},
	} {
		s, err := New(&changing{pool: test.before, next: test.after}, "c", nil, nil).read(t.Context())
		if err != nil || s.Settled != test.want {
			t.Errorf("%s: %v, %v; want %v", name, s.Settled, err, test.want)
		}
	}
}
