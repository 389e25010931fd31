package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// previewSize is the number of changes that the manager looks at together, its limit.
const previewSize = 32

// wanted is a change that a dry run would make.
type wanted struct {
	at     int // of a.done
	what   string
	change *dxpuv1.PreviewChange
}

// would records an action of a dry run.
func (a *apply) would(kind, name, id, what string, change *dxpuv1.PreviewChange) {
	a.wanted = append(a.wanted, wanted{len(a.done), what, change})
	a.note(kind, name, id, "would be "+what)
}

// preview asks the manager what the changes would do. It returns the errors of those that
// would fail.
func (a *apply) preview(ctx context.Context) (errs []error) {
	failed := map[int]bool{}
	for _, together := range previews(a.wanted) {
		req := &dxpuv1.PreviewRequest{}
		for _, w := range together {
			req.Changes = append(req.Changes, w.change)
		}
		res, err := callOn(ctx, a.api, poolAPI.Preview, req)
		if connect.CodeOf(err) == connect.CodeUnimplemented {
			return []error{withHint(errors.New("--dry-run: the manager is older than this command and cannot check the file"), "upgrade the manager")}
		}
		if err != nil {
			return append(errs, err)
		}
		for i, r := range res.Results[:min(len(res.Results), len(together))] {
			w, action := together[i], &a.done[together[i].at]
			if failed[w.at] {
				continue
			}
			if r.Code != "" {
				failed[w.at] = true
				action.Action = "would fail"
				errs = append(errs, &aboutError{action.Kind + " " + action.Name, previewError(r)})
				continue
			}
			action.Action = "would be " + w.what + leasePlace(r.Lease)
		}
	}
	return errs
}

// previews divides the changes into calls. Each has the tenants that its leases need.
func previews(all []wanted) (out [][]wanted) {
	tenants := map[string]wanted{}
	for _, w := range all {
		if put := w.change.GetPutTenant(); put != nil {
			tenants[put.Tenant.Id] = w
		}
	}
	var last []wanted
	has := map[int]bool{} // what last has
	add := func(w wanted) {
		if !has[w.at] {
			has[w.at] = true
			last = append(last, w)
		}
	}
	for _, w := range all {
		if len(last)+2 > previewSize {
			out, last, has = append(out, last), nil, map[int]bool{}
		}
		if create := w.change.GetCreateLease(); create != nil {
			if t, ok := tenants[create.Spec.Tenant]; ok {
				add(t)
			}
		}
		add(w)
	}
	if len(last) > 0 {
		out = append(out, last)
	}
	return out
}

// previewError returns the error that a change would get.
func previewError(r *dxpuv1.PreviewResult) error {
	var code connect.Code
	if code.UnmarshalText([]byte(r.Code)) != nil {
		code = connect.CodeUnknown
	}
	return connect.NewError(code, errors.New(r.Message))
}

// leasePlace returns where a lease would have its GPUs, or why it would wait, as the end of
// a sentence; "" for no lease.
func leasePlace(l *dxpuv1.Lease) string {
	if g := gpusOf(l); len(g) > 0 {
		return fmt.Sprintf(": %s to %s", strings.Join(g, ", "), l.HostId)
	}
	if l.GetState() == dxpuv1.LeaseState_LEASE_STATE_PENDING {
		first, _, _ := strings.Cut(l.StateReason, ". ")
		return ", and wait: " + strings.TrimSuffix(first, ".")
	}
	return ""
}
