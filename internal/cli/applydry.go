package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	known := map[int]bool{} // the changes with a result, by at
	for all := a.wanted; len(all) > 0; {
		before := len(known)
		for _, together := range previews(a.wanted, all) {
			more, err := a.previewOnce(ctx, together, known)
			if outOfBounds(err) {
				more, err = a.previewEach(ctx, together, known, err)
			}
			errs = append(errs, more...)
			if err != nil {
				return append(errs, err)
			}
		}
		all = slices.DeleteFunc(slices.Clone(all), func(w wanted) bool { return known[w.at] })
		if len(known) == before { // a manager that is too busy for a single change
			return append(errs, fmt.Errorf("--dry-run: the manager did not check %d changes: try again", len(all)))
		}
	}
	return errs
}

// previewOnce asks the manager about some changes, and notes which of them it has looked at.
func (a *apply) previewOnce(ctx context.Context, together []wanted, known map[int]bool) (errs []error, err error) {
	req := &dxpuv1.PreviewRequest{}
	for _, w := range together {
		req.Changes = append(req.Changes, w.change)
	}
	res, err := callOn(ctx, a.api, poolAPI.Preview, req)
	if connect.CodeOf(err) == connect.CodeUnimplemented {
		return nil, withHint(errors.New("--dry-run: the manager is older than this command and cannot check the file"), "upgrade the manager")
	}
	if err != nil {
		return nil, err
	}
	for i, r := range res.Results[:min(len(res.Results), len(together))] {
		w, action := together[i], &a.done[together[i].at]
		switch {
		case known[w.at] || r.Code == connect.CodeCanceled.String(): // not looked at
		case r.Code != "":
			known[w.at] = true
			action.Action = "would fail"
			errs = append(errs, &aboutError{action.Kind + " " + action.Name, previewError(r)})
		default:
			known[w.at] = true
			action.Action = "would be " + w.what + leasePlace(r.Lease)
		}
	}
	return errs, nil
}

// outOfBounds reports whether the manager has refused a call because of a text in one of its
// changes, before it looked at any of them.
func outOfBounds(err error) bool {
	var ce *connect.Error
	return errors.As(err, &ce) && ce.Code() == connect.CodeInvalidArgument && previewField.MatchString(ce.Message())
}

// previewEach finds the changes for which the manager refuses a call, and leaves them out of
// the next ones. It returns refusal if there is none.
func (a *apply) previewEach(ctx context.Context, together []wanted, known map[int]bool, refusal error) (errs []error, err error) {
	for _, w := range together {
		_, err := callOn(ctx, a.api, poolAPI.Preview, &dxpuv1.PreviewRequest{Changes: []*dxpuv1.PreviewChange{w.change}})
		if err != nil && !outOfBounds(err) {
			return errs, err
		}
		if err == nil || known[w.at] {
			continue
		}
		known[w.at] = true
		action := &a.done[w.at]
		action.Action = "would fail"
		errs = append(errs, &aboutError{action.Kind + " " + action.Name, err})
		a.wanted = slices.DeleteFunc(slices.Clone(a.wanted), func(o wanted) bool { return o.at == w.at })
	}
	if len(errs) == 0 {
		return nil, refusal
	}
	return errs, nil
}

// previews divides the changes that are not known yet into calls. Each has those of all
// tenants that its leases need, known or not.
func previews(all, unknown []wanted) (out [][]wanted) {
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
	for _, w := range unknown {
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
