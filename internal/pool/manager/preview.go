package manager

import (
	"context"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

const (
	// maxPreview bounds the changes of a preview, and maxPreviewFailures those that fail:
	// the manager's lock is held meanwhile, and each failure repeats the changes before it.
	maxPreview         = 32
	maxPreviewFailures = 4
	// maxPreviewTime bounds the time of a preview under the lock. In a full pool a lease
	// that would wait takes milliseconds, because all leases that it could preempt are
	// looked at.
	maxPreviewTime = 50 * time.Millisecond
)

// Preview implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) Preview(ctx context.Context, req *connect.Request[dxpuv1.PreviewRequest]) (*connect.Response[dxpuv1.PreviewResponse], error) {
	changes := req.Msg.Changes
	if n := len(changes); n < 1 || n > maxPreview {
		return nil, invalid("changes: %d is not 1 to %d", n, maxPreview)
	}
	res := &dxpuv1.PreviewResponse{}
	err := s.m.viewIn(ctx, func(*tx) error {
		res.Results = s.m.previewLocked(callFrom(ctx), changes)
		return nil
	})
	if err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(res), nil
}

// previewLocked carries out changes in a transaction that it takes back. A change that
// fails may have done a part of its work, so the transaction begins again without it.
func (m *Manager) previewLocked(c *call, changes []*dxpuv1.PreviewChange) []*dxpuv1.PreviewResult {
	results := make([]*dxpuv1.PreviewResult, len(changes))
	reserved := m.state.reserved
	defer func() { m.state.reserved = reserved }()
	// The changes before a failure are carried out again after it, so the first ones that
	// the time allows are known in any case.
	late := m.cfg.Now().Add(maxPreviewTime)
	tooLate := func() bool { return m.cfg.Now().After(late) }
	why := errorf(connect.CodeCanceled, "not looked at, because %d changes before it fail", maxPreviewFailures)
	for range maxPreviewFailures {
		t := m.beginLocked(m.cfg.Now())
		t.call = c
		failed := t.previewAll(changes, results, tooLate)
		t.rollback()
		if !failed {
			return results
		}
		if tooLate() {
			why = errorf(connect.CodeCanceled, "not looked at, because a preview may take %s: ask for fewer changes at once", maxPreviewTime)
			break
		}
	}
	for i, r := range results {
		if r == nil {
			results[i] = previewError(why)
		}
	}
	return results
}

// previewAll carries out the changes that have not failed yet, up to the first that fails.
// It reports whether one did, or it became too late for the rest.
func (t *tx) previewAll(changes []*dxpuv1.PreviewChange, results []*dxpuv1.PreviewResult, tooLate func() bool) (unfinished bool) {
	for i, change := range changes {
		if results[i].GetCode() != "" {
			continue
		}
		if i > 0 && tooLate() {
			return true
		}
		r, err := t.preview(proto.CloneOf(change))
		if err != nil {
			results[i] = previewError(err)
			return true
		}
		results[i] = r
	}
	return false
}

func previewError(err error) *dxpuv1.PreviewResult {
	return &dxpuv1.PreviewResult{Code: connect.CodeOf(err).String(), Message: message(err)}
}

// preview carries out one change, if the caller may make it.
func (t *tx) preview(change *dxpuv1.PreviewChange) (*dxpuv1.PreviewResult, error) {
	switch {
	case change.GetPutTenant() != nil:
		r := change.GetPutTenant()
		if err := t.mayPreview("PutTenant"); err != nil {
			return nil, err
		}
		res := &dxpuv1.PutTenantResponse{}
		err := t.putTenant(r, res)
		return &dxpuv1.PreviewResult{Tenant: res.Tenant}, err
	case change.GetCreateLease() != nil:
		r := change.GetCreateLease()
		if err := t.mayPreview("CreateLease"); err != nil {
			return nil, err
		}
		res := &dxpuv1.CreateLeaseResponse{}
		err := t.createLeaseOnce(r, res)
		if err == nil && strings.HasPrefix(res.Lease.GetStateReason(), "in the queue: ") {
			res.Lease.StateReason = strings.TrimPrefix(res.Lease.StateReason, "in the queue: ")
		}
		return previewLease(res.Lease), err
	case change.GetResizeLease() != nil:
		r := change.GetResizeLease()
		if err := t.mayPreview("ResizeLease"); err != nil {
			return nil, err
		}
		res := &dxpuv1.ResizeLeaseResponse{}
		err := t.resizeLease(r, res)
		return &dxpuv1.PreviewResult{Lease: res.Lease}, err
	}
	return nil, invalid("changes: one of put_tenant, create_lease and resize_lease must be set")
}

// previewLease removes what only a lease that exists has.
func previewLease(l *dxpuv1.Lease) *dxpuv1.PreviewResult {
	if l != nil {
		l.Id, l.ResourceVersion, l.CreateTime = "", 0, nil
		for _, b := range l.Bindings {
			b.Id, b.LeaseId, b.Epoch = "", "", 0
		}
	}
	return &dxpuv1.PreviewResult{Lease: l}
}

// mayPreview checks whether the caller's role may make a call. checkOwn has checked the
// objects of callers with limited rights.
func (t *tx) mayPreview(name string) error {
	if t.call == nil {
		return nil // the manager's own
	}
	procedure := "/dxpu.v1.PoolService/" + name
	if rule, _ := auth.Lookup(procedure); rule.For(t.call.caller.Role) == auth.Deny {
		return denied("the role %q may not call %s", auth.RoleWord(t.call.caller.Role), procedure)
	}
	return nil
}

// callOfChange returns the message of the call of a change.
func callOfChange(c *dxpuv1.PreviewChange) any {
	switch {
	case c.GetCreateLease() != nil:
		return c.GetCreateLease()
	case c.GetResizeLease() != nil:
		return c.GetResizeLease()
	}
	return c.GetPutTenant()
}
