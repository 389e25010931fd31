package controller

import (
	"context"
	"errors"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/pool"
)

// oneAnswer is a manager that answers a call with a lease or an error.
type oneAnswer struct {
	dxpuv1connect.PoolServiceClient // others are not called
	err                             error
	gets                            *int            // calls of GetLease
	leases                          []*dxpuv1.Lease // each on a page of its own
}

func (m oneAnswer) ListLeases(_ context.Context, req *connect.Request[dxpuv1.ListLeasesRequest]) (*connect.Response[dxpuv1.ListLeasesResponse], error) {
	at := len(req.Msg.PageToken)
	res := &dxpuv1.ListLeasesResponse{Leases: m.leases[min(at, len(m.leases)):min(at+1, len(m.leases))]}
	if at+1 < len(m.leases) {
		res.NextPageToken = strings.Repeat("x", at+1)
	}
	return connect.NewResponse(res), nil
}

func (m oneAnswer) CreateLease(_ context.Context, req *connect.Request[dxpuv1.CreateLeaseRequest]) (*connect.Response[dxpuv1.CreateLeaseResponse], error) {
	if m.err != nil {
		return nil, m.err
	}
	return connect.NewResponse(&dxpuv1.CreateLeaseResponse{Lease: &dxpuv1.Lease{Id: "l-1", Spec: req.Msg.Spec}}), nil
}

func (m oneAnswer) DeleteLease(context.Context, *connect.Request[dxpuv1.DeleteLeaseRequest]) (*connect.Response[dxpuv1.DeleteLeaseResponse], error) {
	if m.err != nil {
		return nil, m.err
	}
	return connect.NewResponse(&dxpuv1.DeleteLeaseResponse{Lease: lease()}), nil
}

func lease() *dxpuv1.Lease { return &dxpuv1.Lease{Id: "l-1", Spec: spec()} }

func spec() *dxpuv1.LeaseSpec {
	return &dxpuv1.LeaseSpec{Labels: map[string]string{claims.LabelCluster: "c", claims.LabelClaim: "u"}}
}

// controllerWith returns a controller that has a manager and no cluster.
func controllerWith(m oneAnswer) *Controller {
	return &Controller{
		cfg:   Config{Pool: m, Metrics: NewMetrics(prometheus.NewRegistry())},
		watch: pool.New(m, "c", func(string) {}, func() {}),
	}
}

// value returns a counter's value.
func value(t *testing.T, r prometheus.Collector) float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(r)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families[0].Metric[0].Counter.GetValue()
}

// tooMany is how the manager refuses a call of a caller that has too many.
func tooMany() error {
	err := connect.NewError(connect.CodeResourceExhausted, errors.New("too many calls"))
	err.Meta().Set("Retry-After", "1")
	return err
}

// A lease that the manager returns is created: it counts, and the controller knows it
// before the watch reports it. A refusal becomes the status of the device, and any other
// error is tried again.
func TestCreateLease(t *testing.T) {
	for _, test := range []struct {
		name             string
		err              error
		created, refused float64
		again            bool
		phase            claims.Phase
	}{
		{name: "created", created: 1, phase: claims.Waiting},
		{name: "refused", err: connect.NewError(connect.CodeResourceExhausted, errors.New("quota")), refused: 1, phase: claims.Failed},
		{name: "unavailable", err: connect.NewError(connect.CodeUnavailable, errors.New("no leader")), again: true, phase: claims.Waiting},
		{name: "too many calls", err: tooMany(), again: true, phase: claims.Waiting},
		{name: "no answer", err: errors.New("connection refused"), again: true, phase: claims.Waiting},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := controllerWith(oneAnswer{err: test.err})
			plan := &claims.Plan{Status: []claims.Status{{Device: "d", Phase: claims.Waiting}, {Device: "d", Share: "s"}, {Device: "e", Phase: claims.Waiting}}}
			err := c.createLease(t.Context(), claims.Request{ID: "r", Spec: spec(), Devices: []claims.Device{{Name: "d"}, {Name: "e"}}}, plan)
			if (err != nil) != test.again {
				t.Errorf("error %v, want one: %v", err, test.again)
			}
			if v := value(t, c.cfg.Metrics.created); v != test.created {
				t.Errorf("%v leases created, want %v", v, test.created)
			}
			if v := value(t, c.cfg.Metrics.refused); v != test.refused {
				t.Errorf("%v leases refused, want %v", v, test.refused)
			}
			if n := len(c.watch.Leases("u")); n != int(test.created) {
				t.Errorf("the controller knows %d leases, want %v", n, test.created)
			}
			for i, want := range []claims.Phase{test.phase, claims.Waiting, test.phase} {
				if p := plan.Status[i].Phase; p != want {
					t.Errorf("device %d: phase %v, want %v", i, p, want)
				}
			}
		})
	}
}

// A deleted lease counts, one that the manager has forgotten does not.
func TestDeleteLease(t *testing.T) {
	for _, test := range []struct {
		name    string
		err     error
		deleted float64
		again   bool
	}{
		{name: "deleted", deleted: 1},
		{name: "forgotten", err: connect.NewError(connect.CodeNotFound, errors.New("no such lease"))},
		{name: "unavailable", err: connect.NewError(connect.CodeUnavailable, errors.New("no leader")), again: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := controllerWith(oneAnswer{err: test.err})
			if err := c.deleteLease(t.Context(), "l-1"); (err != nil) != test.again {
				t.Errorf("error %v, want one: %v", err, test.again)
			}
			if v := value(t, c.cfg.Metrics.deleted); v != test.deleted {
				t.Errorf("%v leases deleted, want %v", v, test.deleted)
			}
		})
	}
}

// TestLeaseUnseen: a lease of the same ID with another spec may be one that the watch has not shown yet,
// and the claim is looked at with it. Any other is that of another user: the claim fails at once.
func TestLeaseUnseen(t *testing.T) {
	ours, foreign := lease(), &dxpuv1.Lease{Id: "l-2", RequestId: "r", Spec: &dxpuv1.LeaseSpec{}}
	ours.RequestId = "r"
	for name, test := range map[string]struct {
		leases []*dxpuv1.Lease
		again  bool
	}{
		"ours":      {[]*dxpuv1.Lease{{Id: "l-0", RequestId: "another"}, ours}, true},
		"a user's":  {[]*dxpuv1.Lease{foreign}, false},
		"forgotten": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := controllerWith(oneAnswer{err: connect.NewError(connect.CodeAlreadyExists, errors.New("used for another spec")), leases: test.leases})
			plan := &claims.Plan{Status: []claims.Status{{Device: "d", Phase: claims.Waiting}}}
			err := c.createLease(t.Context(), claims.Request{ID: "r", Spec: spec(), Devices: []claims.Device{{Name: "d"}}}, plan)
			if (err != nil) != test.again || (len(c.watch.Leases("u")) == 1) != test.again {
				t.Errorf("%v, with the leases %v; looked at again: want %v", err, c.watch.Leases("u"), test.again)
			}
			if refused := plan.Status[0].Reason == "Refused"; refused == test.again {
				t.Errorf("status %+v", plan.Status)
			}
		})
	}
}
