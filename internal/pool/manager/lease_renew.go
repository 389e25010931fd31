package manager

import (
	"context"
	"maps"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// A lease with a time to live ends when its holder does not renew it: a program that was
// killed cannot delete its lease. Renewals are not stored. Each lease has its whole time
// again when another manager begins to lead, so a renewal that was acknowledged is never
// lost, and the time without a leader does not count. Nor does a stall of the manager.

// Bounds of a lease's time to live. Renewals arrive three times as often.
const (
	minTTL = 10 * time.Second
	maxTTL = 24 * time.Hour
)

// leaseRenewals is when the leases with a time to live were last renewed. Manager.mu guards it.
// It is not part of transactions: one that fails leaves a renewal, which does no harm.
type leaseRenewals struct {
	at    map[string]time.Time
	floor time.Time // all leases count as renewed then
	prune int       // the size of at from which leases that have ended are removed
}

func checkTTL(s *dxpuv1.LeaseSpec) error {
	if s.Ttl == nil {
		return nil
	}
	if d := s.Ttl.AsDuration(); s.Ttl.CheckValid() != nil || d < minTTL || d > maxTTL {
		return invalid("spec.ttl: must be from %s to %s", period(minTTL), period(maxTTL))
	}
	return nil
}

// RenewLease implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) RenewLease(ctx context.Context, req *connect.Request[dxpuv1.RenewLeaseRequest]) (*connect.Response[dxpuv1.RenewLeaseResponse], error) {
	return updateResponse(ctx, s.m, func(t *tx, res *dxpuv1.RenewLeaseResponse) error {
		l, err := t.lease(req.Msg.LeaseId)
		switch {
		case err != nil:
			return err
		case l == nil:
			return notFound("lease", req.Msg.LeaseId)
		case l.spec.Ttl == nil:
			return errorf(connect.CodeFailedPrecondition, "lease_id: %s has no time to live, and needs no renewal", l.ID)
		case l.ended() || l.State == leaseReleasing:
			return errorf(connect.CodeFailedPrecondition, "lease_id: %s is %s: %s", l.ID, leaseWord(l.State), l.StateReason)
		}
		t.renew(l.ID)
		res.Lease = t.leaseMessage(l)
		return nil
	})
}

// renew notes that a lease was renewed now.
func (t *tx) renew(id string) {
	r := &t.holders
	if r.at[id] = t.now; len(r.at) >= max(r.prune, 16) {
		maps.DeleteFunc(r.at, func(id string, _ time.Time) bool { l := t.leases.get(id); return l == nil || l.ended() })
		r.prune = 2 * len(r.at)
	}
}

// renewBy returns when a lease ends unless it is renewed; zero: it needs no renewal.
func (t *tx) renewBy(l *leaseRecord) time.Time {
	if l.spec.Ttl == nil {
		return time.Time{}
	}
	at := t.holders.floor
	if r, ok := t.holders.at[l.ID]; ok && r.After(at) {
		at = r
	}
	return at.Add(l.spec.Ttl.AsDuration())
}

// excuse takes a stall of the manager off the time since the renewals.
func (r *leaseRenewals) excuse(stall time.Duration) {
	r.floor = r.floor.Add(stall)
	for id, at := range r.at {
		r.at[id] = at.Add(stall)
	}
}
