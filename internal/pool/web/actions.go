package web

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// action is a form that changes the pool: what to do with which object.
type action struct {
	do, kind, id, reason string
	deadline             time.Duration
	force                bool
	form                 url.Values // the other fields
	request              string     // ID of the request: a form that arrives twice takes effect once
	next                 string     // path of the page that follows; empty: the one with the form
}

// act carries out a form and redirects to its page. The API checks the rights.
func (s *Server) act(w http.ResponseWriter, r *http.Request) {
	back := localPath(r.PostFormValue("next"))
	if err := cmp.Or(checkForm(r), checkRequest(r)); err != nil {
		s.renderBare(w, r, http.StatusForbidden, "failure", "Refused", failure{Status: http.StatusForbidden, Message: sentence(err.Error())})
		return
	}
	a := &action{
		do: r.PostFormValue("do"), kind: r.PostFormValue("kind"), id: r.PostFormValue("id"),
		reason: strings.TrimSpace(r.PostFormValue("reason")), force: r.PostFormValue("force") != "", form: r.PostForm,
		request: requestID(r.PostForm),
	}
	if n, err := strconv.ParseUint(r.PostFormValue("deadline"), 10, 31); err == nil {
		a.deadline = time.Duration(n) * time.Second
	}
	out, err := s.outcomes.of(r.Context(), a.request, func(ctx context.Context) (string, string, error) {
		done, err := a.carryOut(ctx, s.cfg.Client(r))
		return done, a.next, err
	})
	if err != nil {
		v := s.newView(w, r)
		v.Here = back // the page to return to after signing in
		s.fail(w, v, err)
		return
	}
	setNotice(w, r, out.notice)
	http.Redirect(w, r, cmp.Or(out.next, back), http.StatusSeeOther)
}

// requestID returns the request ID of a form: equal for a form that a double click or a
// reload sends twice, and another one for other values in the same copy of the page.
func requestID(form url.Values) string {
	sum := sha256.Sum256([]byte(form.Encode())) // sorted by key
	return form.Get("request") + "-" + hex.EncodeToString(sum[:8])
}

func (a *action) target() (*dxpuv1.Target, error) {
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
func (a *action) carryOut(ctx context.Context, api dxpuv1connect.PoolServiceClient) (string, error) {
	switch a.do {
	case "cordon", "uncordon", "drain":
		return a.maintain(ctx, api)
	case "plan":
		return a.plan(ctx, api)
	case "endplan":
		_, err := api.EndMaintenance(ctx, connect.NewRequest(&dxpuv1.EndMaintenanceRequest{MaintenanceId: a.id}))
		return fmt.Sprintf("Maintenance %s is over.", a.id), err
	case "replace":
		res, err := ask(ctx, api.ReplaceGPU, &dxpuv1.ReplaceGPURequest{GpuId: a.id, Cordon: a.force, RequestId: a.request})
		return fmt.Sprintf("GPU %s is being replaced by %s.", a.id, res.GetBinding().GetGpuId()), err
	case "clear":
		_, err := api.ClearGPUErrors(ctx, connect.NewRequest(&dxpuv1.ClearGPUErrorsRequest{GpuId: a.id}))
		return fmt.Sprintf("The errors of GPU %s were cleared.", a.id), err
	case "create":
		return a.create(ctx, api)
	case "resize":
		count, err := a.number("count", 1, maxCount)
		if err != nil {
			return "", err
		}
		_, err = api.ResizeLease(ctx, connect.NewRequest(&dxpuv1.ResizeLeaseRequest{LeaseId: a.id, Count: uint32(count)}))
		return fmt.Sprintf("Lease %s gets %s.", a.id, plural(count, "GPU")), err
	case "resizepart":
		return a.resizePart(ctx, api)
	case "migrate":
		return a.migrate(ctx, api)
	case "stay":
		return a.stay(ctx, api)
	case "delete":
		_, err := api.DeleteLease(ctx, connect.NewRequest(&dxpuv1.DeleteLeaseRequest{LeaseId: a.id, Force: a.force}))
		return fmt.Sprintf("Lease %s is being released.", a.id), err
	}
	return "", connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("do: there is no action %q", a.do))
}

func (a *action) maintain(ctx context.Context, api dxpuv1connect.PoolServiceClient) (string, error) {
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

// maxMinutes bounds the times of maintenance in the form: a year and a day, as in the API.
const maxMinutes = 366 * 24 * 60

// plan plans maintenance from the form of a box or a host.
func (a *action) plan(ctx context.Context, api dxpuv1connect.PoolServiceClient) (string, error) {
	m := &dxpuv1.Maintenance{Reason: a.reason, KeepLeases: a.form.Get("keep") != ""}
	switch a.kind {
	case "box":
		m.Target = &dxpuv1.Maintenance_BoxId{BoxId: a.id}
	case "host":
		m.Target = &dxpuv1.Maintenance_HostId{HostId: a.id}
	case "rack":
		m.Target = &dxpuv1.Maintenance_Rack{Rack: a.id}
	}
	in, err := a.number("in", 0, maxMinutes)
	if err != nil {
		return "", err
	}
	lasts, err := a.number("for", 1, maxMinutes)
	if err != nil {
		return "", err
	}
	drain, err := a.number("drain", 0, maxMinutes)
	if err != nil {
		return "", err
	}
	start := time.Now().Add(time.Duration(in) * time.Minute)
	m.StartTime, m.EndTime = timestamppb.New(start), timestamppb.New(start.Add(time.Duration(lasts)*time.Minute))
	if drain > 0 {
		m.DrainBefore = durationpb.New(time.Duration(drain) * time.Minute)
	}
	res, err := ask(ctx, api.PlanMaintenance, &dxpuv1.PlanMaintenanceRequest{Maintenance: m, RequestId: a.request})
	return fmt.Sprintf("Maintenance %s of %s is planned.", res.GetMaintenance().GetId(), a.id), err
}

// maxCount is the largest number of GPUs of a lease that the form takes: that of the API.
const maxCount = 64

// create creates a lease from the form of the page of leases, and shows it.
func (a *action) create(ctx context.Context, api dxpuv1connect.PoolServiceClient) (string, error) {
	field := func(name string) string { return strings.TrimSpace(a.form.Get(name)) }
	count, err := a.number("count", 1, maxCount)
	if err != nil {
		return "", err
	}
	spec := &dxpuv1.LeaseSpec{
		Count: uint32(count), HostId: field("host"), Model: field("model"), Tenant: field("tenant"), Wait: field("wait") != "",
	}
	if field("priority") != "" {
		n, err := a.number("priority", -100, 100)
		if err != nil {
			return "", err
		}
		spec.Priority = int32(n)
	}
	if field("hours") != "" {
		n, err := a.number("hours", 1, 24*365)
		if err != nil {
			return "", err
		}
		spec.ExpiresAfter = durationpb.New(time.Duration(n) * time.Hour)
	}
	if field("together") != "" {
		spec.SameBox = dxpuv1.Preference_PREFERENCE_REQUIRED
	}
	if spec.Part, err = a.part(); err != nil {
		return "", err
	}
	if err := checkTenant(ctx, api, spec.Tenant); err != nil {
		return "", err
	}
	res, err := ask(ctx, api.CreateLease, &dxpuv1.CreateLeaseRequest{Spec: spec, RequestId: a.request})
	if err != nil {
		return "", err
	}
	a.next = "/ui/leases/" + url.PathEscape(res.GetLease().GetId())
	return fmt.Sprintf("Lease %s was created: it %s.", res.GetLease().GetId(), leaseWord(res.GetLease())), nil
}

const (
	maxPartMemory = 4096  // the largest memory of a part that the forms take, in GiB
	maxSeconds    = 86400 // the longest deadline that they take
)

// given reports whether a field of the form is filled in.
func (a *action) given(name string) bool { return strings.TrimSpace(a.form.Get(name)) != "" }

// resizePart gives the parts of a lease another size. An empty field keeps what they have.
func (a *action) resizePart(ctx context.Context, api dxpuv1connect.PoolServiceClient) (string, error) {
	req := &dxpuv1.ResizeLeaseRequest{LeaseId: a.id, Part: &dxpuv1.Part{}}
	if !a.given("memory") && !a.given("compute") {
		return "", connect.NewError(connect.CodeInvalidArgument, errors.New("memory and compute: one of them must have a new size"))
	}
	if a.given("memory") {
		n, err := a.number("memory", 1, maxPartMemory)
		if err != nil {
			return "", err
		}
		req.Part.MemoryBytes = uint64(n) << 30
	}
	if a.given("compute") {
		n, err := a.number("compute", 1, 100)
		if err != nil {
			return "", err
		}
		req.Part.Compute = uint32(n) * 10
	}
	if a.given("deadline") {
		n, err := a.number("deadline", 1, maxSeconds)
		if err != nil {
			return "", err
		}
		req.Deadline = durationpb.New(time.Duration(n) * time.Second)
	}
	res, err := ask(ctx, api.ResizeLease, req)
	return fmt.Sprintf("Lease %s gets %s of each GPU.", a.id, partWords(res.GetLease().GetSpec().GetPart())), err
}

// part returns the part of each GPU that the form asks for, nil for whole GPUs.
func (a *action) part() (*dxpuv1.Part, error) {
	if !a.given("memory") && !a.given("compute") {
		return nil, nil
	}
	memory, err := a.number("memory", 1, maxPartMemory)
	if err != nil {
		return nil, err
	}
	compute, err := a.number("compute", 1, 100)
	if err != nil {
		return nil, err
	}
	return &dxpuv1.Part{MemoryBytes: uint64(memory) << 30, Compute: uint32(compute) * 10}, nil
}

// checkTenant refuses the name of a tenant that is not defined. Until a pool has a tenant
// its manager takes every name, and one that is mistyped would have no limits.
func checkTenant(ctx context.Context, api dxpuv1connect.PoolServiceClient, name string) error {
	if name == "" || name == "default" {
		return nil
	}
	res, err := ask(ctx, api.GetTenant, &dxpuv1.GetTenantRequest{TenantId: name})
	if connect.CodeOf(err) == connect.CodeNotFound || err == nil && res.Tenant.ResourceVersion == 0 {
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("tenant: %q is not defined; an operator makes it (dxpu tenant set)", name))
	}
	return nil // the manager judges
}

// leaseWord says how a new lease does.
func leaseWord(l *dxpuv1.Lease) string {
	if l.GetState() == dxpuv1.LeaseState_LEASE_STATE_PENDING {
		return "waits in the queue"
	}
	return "gets its GPUs"
}

// number returns a field of the form that must be a number.
func (a *action) number(field string, least, most int64) (int64, error) {
	text := strings.TrimSpace(a.form.Get(field))
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < least || n > most {
		return 0, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("%s: %q is not a number from %d to %d", field, text, least, most))
	}
	return n, nil
}
