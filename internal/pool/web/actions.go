package web

import (
	"context"
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

// action is a form that changes the pool: what to do with which object.
type action struct {
	do, kind, id, reason string
	deadline             time.Duration
	force                bool
}

// act carries out a form and redirects to its page. The API checks the rights.
func (s *Server) act(w http.ResponseWriter, r *http.Request) {
	back := localPath(r.PostFormValue("next"))
	if err := checkForm(r); err != nil {
		s.renderBare(w, r, http.StatusForbidden, "failure", "Refused", failure{Status: http.StatusForbidden, Message: sentence(err.Error())})
		return
	}
	a := action{
		do: r.PostFormValue("do"), kind: r.PostFormValue("kind"), id: r.PostFormValue("id"),
		reason: strings.TrimSpace(r.PostFormValue("reason")), force: r.PostFormValue("force") != "",
	}
	if n, err := strconv.ParseUint(r.PostFormValue("deadline"), 10, 31); err == nil {
		a.deadline = time.Duration(n) * time.Second
	}
	done, err := a.carryOut(r.Context(), s.cfg.Client(r))
	if err != nil {
		v := s.newView(w, r)
		v.Here = back // the page to return to after signing in
		s.fail(w, v, err)
		return
	}
	setNotice(w, r, done)
	http.Redirect(w, r, back, http.StatusSeeOther)
}

func (a action) target() (*dxpuv1.Target, error) {
	switch a.kind {
	case "gpu":
		return &dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: a.id}}, nil
	case "box":
		return &dxpuv1.Target{Target: &dxpuv1.Target_BoxId{BoxId: a.id}}, nil
	case "host":
		return &dxpuv1.Target{Target: &dxpuv1.Target_HostId{HostId: a.id}}, nil
	}
	return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("kind: %q is not gpu, box or host", a.kind))
}

// carryOut carries out the action and returns a sentence that confirms it.
func (a action) carryOut(ctx context.Context, api dxpuv1connect.PoolServiceClient) (string, error) {
	switch a.do {
	case "cordon", "uncordon", "drain":
		return a.maintain(ctx, api)
	case "replace":
		res, err := ask(ctx, api.ReplaceGPU, &dxpuv1.ReplaceGPURequest{GpuId: a.id, Cordon: a.force})
		return fmt.Sprintf("GPU %s is being replaced by %s.", a.id, res.GetBinding().GetGpuId()), err
	case "clear":
		_, err := api.ClearGPUErrors(ctx, connect.NewRequest(&dxpuv1.ClearGPUErrorsRequest{GpuId: a.id}))
		return fmt.Sprintf("The errors of GPU %s were cleared.", a.id), err
	case "delete":
		_, err := api.DeleteLease(ctx, connect.NewRequest(&dxpuv1.DeleteLeaseRequest{LeaseId: a.id, Force: a.force}))
		return fmt.Sprintf("Lease %s is being released.", a.id), err
	}
	return "", connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("do: there is no action %q", a.do))
}

func (a action) maintain(ctx context.Context, api dxpuv1connect.PoolServiceClient) (string, error) {
	target, err := a.target()
	if err != nil {
		return "", err
	}
	switch a.do {
	case "cordon":
		_, err = api.Cordon(ctx, connect.NewRequest(&dxpuv1.CordonRequest{Target: target, Reason: a.reason}))
		return fmt.Sprintf("%s takes no new bindings.", a.id), err
	case "uncordon":
		_, err = api.Uncordon(ctx, connect.NewRequest(&dxpuv1.UncordonRequest{Target: target}))
		return fmt.Sprintf("%s takes new bindings again.", a.id), err
	}
	req := &dxpuv1.DrainRequest{Target: target, Reason: a.reason}
	if a.deadline > 0 {
		req.Deadline = durationpb.New(a.deadline)
	}
	res, err := ask(ctx, api.Drain, req)
	return fmt.Sprintf("%s is being drained: %s must be released.", a.id, plural(len(res.GetBindingIds()), "binding")), err
}
