package manager

import (
	"context"
	"slices"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// defaultTenant is the tenant of leases without one. It needs no record.
const defaultTenant = "default"

// scope is the part of the pool that a caller may see. The zero scope is empty.
type scope struct {
	all    bool
	tenant string
	host   string
}

func scopeOf(ctx context.Context) scope { return scopeFor(auth.From(ctx)) }

func scopeFor(who auth.Identity) scope {
	switch who.Role {
	case dxpuv1.Role_ROLE_ADMIN, dxpuv1.Role_ROLE_OPERATOR:
		return scope{all: true}
	case dxpuv1.Role_ROLE_TENANT:
		return scope{tenant: who.Tenant}
	case dxpuv1.Role_ROLE_HOST:
		return scope{host: who.Node}
	default:
		return scope{}
	}
}

// lease reports whether a lease is in the scope.
func (s scope) lease(l *leaseRecord) bool {
	return s.all || s.tenant != "" && l.spec.Tenant == s.tenant || s.host != "" && (l.HostID == s.host || l.spec.HostId == s.host)
}

// gpu reports whether a GPU is in the scope: a lease of the scope holds it.
func (s scope) gpu(t *tx, g *dxpuv1.GPU) bool {
	if s.all {
		return true
	}
	l := t.leases.get(g.LeaseId)
	return l != nil && s.lease(l) && (s.host == "" || g.HostId == s.host)
}

// hasHost reports whether a host is in the scope: it is the caller, or the
// tenant has a binding there.
func (s scope) hasHost(t *tx, n *nodeRecord) bool {
	if s.all || s.host != "" {
		return s.all || n.ID == s.host
	}
	for id := range t.bindingsByNode[n.ID] {
		if l := t.leases.get(t.bindings.get(id).LeaseID); l != nil && s.lease(l) {
			return true
		}
	}
	return false
}

// hostPart reduces a host to the part in the scope: a tenant sees its own
// slots, a host all of itself.
func (s scope) hostPart(t *tx, h *dxpuv1.Host) *dxpuv1.Host {
	if s.tenant == "" {
		return h
	}
	h.Slots = slices.DeleteFunc(h.Slots, func(slot *dxpuv1.HostSlot) bool {
		l := t.leases.get(slot.LeaseId)
		return l == nil || !s.lease(l)
	})
	// The owner and location of the host and the use by other tenants are hidden.
	h.Node = &dxpuv1.NodeInfo{Id: h.Node.Id, Name: h.Node.Name, Connected: h.Node.Connected}
	h.ResourceVersion = 0
	return h
}

// event returns an event as the scope may see it, nil if it is outside.
func (s scope) event(e *dxpuv1.Event) *dxpuv1.Event {
	switch {
	case s.all:
		return e
	case s.tenant != "" && e.Tenant == s.tenant && e.LeaseId != "":
	case s.host != "" && e.HostId == s.host:
	default:
		return nil
	}
	if e.Type != dxpuv1.EventType_EVENT_TYPE_LEASE_PREEMPTED {
		return e
	}
	// The full message names the lease of another tenant.
	return &dxpuv1.Event{
		Revision: e.Revision, Time: e.Time, Type: e.Type, LeaseId: e.LeaseId, HostId: e.HostId, LeaseState: e.LeaseState,
		Reason: e.Reason, Tenant: e.Tenant, Message: "lease " + e.LeaseId + " is preempted by one of higher priority",
	}
}

// events reduces a list of events to those in the scope.
func (s scope) events(all []*dxpuv1.Event) []*dxpuv1.Event {
	out := all[:0]
	for _, e := range all {
		if e := s.event(e); e != nil {
			out = append(out, e)
		}
	}
	return out
}
