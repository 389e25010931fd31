package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// order is a form that changes the pool: what to do with which thing.
type order struct {
	do, kind, id, reason string
	deadline             time.Duration
	force                bool
}

// act carries out a form and goes back to the page that it was on. Whether the
// caller may is decided by the API.
func (s *Server) act(w http.ResponseWriter, r *http.Request) {
	back := ours(r.PostFormValue("next"))
	if err := checkForm(r); err != nil {
		v := s.newView(w, r)
		v.Name, v.Title, v.Data = "failure", "Refused", failure{Status: http.StatusForbidden, Message: sentence(err.Error())}
		v.writeBare(w, http.StatusForbidden)
		return
	}
	o := order{
		do: r.PostFormValue("do"), kind: r.PostFormValue("kind"), id: r.PostFormValue("id"),
		reason: strings.TrimSpace(r.PostFormValue("reason")), force: r.PostFormValue("force") != "",
	}
	if n, err := strconv.ParseUint(r.PostFormValue("deadline"), 10, 31); err == nil {
		o.deadline = time.Duration(n) * time.Second
	}
	done, err := o.carryOut(r.Context(), s.cfg.Client(r))
	if err != nil {
		v := s.newView(w, r)
		v.Here = back // where to come back to after signing in
		s.fail(w, v, err)
		return
	}
	say(w, r, done)
	http.Redirect(w, r, back, http.StatusSeeOther)
}

func (o order) target() (*dxpuv1.Target, error) {
	switch o.kind {
	case "gpu":
		return &dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: o.id}}, nil
	case "box":
		return &dxpuv1.Target{Target: &dxpuv1.Target_BoxId{BoxId: o.id}}, nil
	case "host":
		return &dxpuv1.Target{Target: &dxpuv1.Target_HostId{HostId: o.id}}, nil
	}
	return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("kind: %q is not gpu, box or host", o.kind))
}

// carryOut does it and says what was done.
func (o order) carryOut(ctx context.Context, api dxpuv1connect.PoolServiceClient) (string, error) {
	switch o.do {
	case "cordon", "uncordon", "drain":
		return o.maintain(ctx, api)
	case "replace":
		res, err := answer(api.ReplaceGPU(ctx, connect.NewRequest(&dxpuv1.ReplaceGPURequest{GpuId: o.id, Cordon: o.force})))
		return fmt.Sprintf("GPU %s is being replaced by %s.", o.id, res.GetBinding().GetGpuId()), err
	case "clear":
		_, err := api.ClearGPUErrors(ctx, connect.NewRequest(&dxpuv1.ClearGPUErrorsRequest{GpuId: o.id}))
		return fmt.Sprintf("The errors of GPU %s are forgotten.", o.id), err
	case "delete":
		_, err := api.DeleteLease(ctx, connect.NewRequest(&dxpuv1.DeleteLeaseRequest{LeaseId: o.id, Force: o.force}))
		return fmt.Sprintf("Lease %s is being released.", o.id), err
	}
	return "", connect.NewError(connect.CodeInvalidArgument, errors.New("do: there is no such action"))
}

func (o order) maintain(ctx context.Context, api dxpuv1connect.PoolServiceClient) (string, error) {
	target, err := o.target()
	if err != nil {
		return "", err
	}
	switch o.do {
	case "cordon":
		_, err = api.Cordon(ctx, connect.NewRequest(&dxpuv1.CordonRequest{Target: target, Reason: o.reason}))
		return fmt.Sprintf("%s takes no new bindings.", o.id), err
	case "uncordon":
		_, err = api.Uncordon(ctx, connect.NewRequest(&dxpuv1.UncordonRequest{Target: target}))
		return fmt.Sprintf("%s takes new bindings again.", o.id), err
	}
	req := &dxpuv1.DrainRequest{Target: target, Reason: o.reason}
	if o.deadline > 0 {
		req.Deadline = durationpb.New(o.deadline)
	}
	res, err := answer(api.Drain(ctx, connect.NewRequest(req)))
	return fmt.Sprintf("%s is being emptied: %s on the way out.", o.id, plural(len(res.GetBindingIds()), "binding")), err
}
