package manager

import (
	"context"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// guard checks before every handler of the API whether the caller's role allows the
// call and, for auth.Own, whether the objects that the request names belong to the
// caller. It also bounds the request's fields. It implements connect.Interceptor.
type guard struct{ m *Manager }

func denied(format string, args ...any) error {
	return errorf(connect.CodePermissionDenied, format, args...)
}

func (g *guard) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		c := callOf(ctx, req.Spec())
		err := g.m.allow(ctx, c, req.Any())
		if err == nil {
			err = checkBounds(req.Any())
		}
		if err != nil {
			g.m.auditRefusal(ctx, c, err)
			return nil, err
		}
		res, err := next(context.WithValue(ctx, callKey{}, c), req)
		if c.changes && !c.recorded {
			g.m.auditRefusal(ctx, c, err)
		}
		return res, err
	}
}

func (g *guard) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (g *guard) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		c := callOf(ctx, conn.Spec())
		leave, err := g.m.limits.openStream(c)
		if g.m.limited(ctx, c, err) != nil {
			return err
		}
		defer leave()
		return next(context.WithValue(ctx, callKey{}, c), &guardedStream{conn, g.m, c})
	}
}

// guardedStream checks the request when it arrives, and the caller again before
// each answer: a stream ends when its caller loses the right to it.
type guardedStream struct {
	connect.StreamingHandlerConn
	m *Manager
	c *call
}

func (s *guardedStream) Receive(msg any) error {
	if err := s.StreamingHandlerConn.Receive(msg); err != nil {
		return err
	}
	err := s.m.allow(s.c.request.Context(), s.c, msg)
	if err == nil {
		err = checkBounds(msg)
	}
	if err != nil || s.c.changes {
		s.m.auditRefusal(s.c.request.Context(), s.c, err)
	}
	return err
}

func (s *guardedStream) Send(msg any) error {
	now, err := s.m.Authenticate(s.c.request)
	if err != nil {
		return err
	}
	if now != s.c.caller {
		return errCredential()
	}
	return s.StreamingHandlerConn.Send(msg)
}

// callOf completes the call of a context. A context without a call was not
// authenticated; its caller has no role.
func callOf(ctx context.Context, spec connect.Spec) *call {
	c := callFrom(ctx)
	if c == nil {
		c = &call{caller: auth.From(ctx)}
	}
	rule, _ := auth.Lookup(spec.Procedure)
	c.procedure, c.changes = spec.Procedure, rule.Changes
	return c
}

// allow decides whether a caller may make a request. It may narrow the request
// to the caller's own objects.
func (m *Manager) allow(ctx context.Context, c *call, msg any) error {
	c.msg, _ = msg.(proto.Message)
	rule, _ := auth.Lookup(c.procedure)
	switch rule.For(c.caller.Role) {
	case auth.Allow:
		return nil
	case auth.Own:
		return m.withEnded(ctx, func() error {
			return m.peek(func(t *tx) error { return t.checkOwn(c.caller, msg) })
		})
	}
	stranger := c.caller.Role == dxpuv1.Role_ROLE_UNSPECIFIED
	if stranger {
		if err := m.limits.countUnauthenticated(c, m.cfg.Now()); err != nil {
			return err
		}
	}
	switch {
	case isNodeOnlyCall(msg):
		return errCredential() // only a node can make it
	case stranger:
		return errNoCredential()
	}
	return denied("the role %q may not call %s", auth.RoleWord(c.caller.Role), c.procedure)
}

func isNodeOnlyCall(msg any) bool {
	switch msg.(type) {
	case *dxpuv1.WatchDesiredRequest, *dxpuv1.ReportRequest, *dxpuv1.RenewRequest:
		return true
	}
	return false
}

// checkOwn checks that a request of a caller with limited rights names only its own
// objects. An object of another caller does not exist for it.
func (t *tx) checkOwn(who auth.Identity, msg any) error {
	switch r := msg.(type) {
	case *dxpuv1.WatchDesiredRequest, *dxpuv1.RenewRequest:
		return checkOwnNode(who, r.(interface{ GetNodeId() string }).GetNodeId())
	case *dxpuv1.ReportRequest:
		if r.State == nil {
			return nil // the handler refuses it
		}
		return checkOwnNode(who, r.State.NodeId)
	case *dxpuv1.GetLeaseRequest, *dxpuv1.DeleteLeaseRequest, *dxpuv1.ResizeLeaseRequest, *dxpuv1.RenewLeaseRequest:
		return t.checkOwnLease(who, r.(interface{ GetLeaseId() string }).GetLeaseId())
	case *dxpuv1.ReplugGPURequest:
		return t.checkOwnGPU(who, r.GpuId)
	case *dxpuv1.CreateLeaseRequest:
		if who.Node != "" && r.RequestId != "" {
			r.RequestId = who.Node + "/" + r.RequestId // each host has its own request IDs
		}
		return checkOwnSpec(who, r.Spec)
	case *dxpuv1.ExplainLeaseRequest:
		if id := r.GetLeaseId(); id != "" || r.GetSpec() == nil {
			return t.checkOwnLease(who, id)
		}
		return checkOwnSpec(who, r.GetSpec())
	case *dxpuv1.PreviewRequest:
		for _, c := range r.Changes {
			if err := t.checkOwn(who, callOfChange(c)); err != nil {
				return err
			}
		}
		return nil
	case *dxpuv1.GetTenantRequest:
		if r.TenantId != who.Tenant {
			return notFound("tenant", r.TenantId)
		}
		return nil
	case *dxpuv1.GetPoolRequest, *dxpuv1.WhoAmIRequest, *dxpuv1.ListHostsRequest, *dxpuv1.GetHostRequest, *dxpuv1.ListGPUsRequest,
		*dxpuv1.GetGPURequest, *dxpuv1.ListLeasesRequest, *dxpuv1.ListEventsRequest, *dxpuv1.WatchEventsRequest,
		*dxpuv1.WatchLeasesRequest:
		return nil // scope filters the answer
	}
	return denied("this call is not for the role %q", auth.RoleWord(who.Role))
}

func checkOwnNode(who auth.Identity, node string) error {
	if who.Node == "" || node != who.Node {
		return denied("node_id: %q is not the caller %q; a node may report only for itself", truncateText(node), who.Node)
	}
	return nil
}

func (t *tx) checkOwnLease(who auth.Identity, id string) error {
	l, err := t.lease(id)
	if err != nil {
		return err
	}
	if l == nil || !scopeFor(who).lease(l) {
		return notFound("lease", id)
	}
	return nil
}

func (t *tx) checkOwnGPU(who auth.Identity, id string) error {
	if n, s, ok := t.gpuByID(id); !ok || !scopeFor(who).gpu(t, t.gpuMessage(n, s)) {
		return notFound("gpu", id)
	}
	return nil
}

// checkOwnSpec fills in the owner of a requested lease, and refuses a lease for
// another owner.
func checkOwnSpec(who auth.Identity, s *dxpuv1.LeaseSpec) error {
	if s == nil {
		return nil // the handler refuses it
	}
	if who.Role == dxpuv1.Role_ROLE_HOST {
		if s.HostId != "" && s.HostId != who.Node {
			return denied("spec.host_id: a host may request GPUs only for itself; leave it empty or set it to %q", who.Node)
		}
		if s.Tenant != "" && s.Tenant != defaultTenant {
			return denied("spec.tenant: a host cannot request GPUs for a tenant; leave it empty")
		}
		s.HostId = who.Node
		return nil
	}
	if s.Tenant != "" && s.Tenant != who.Tenant {
		return denied("spec.tenant: a tenant may request GPUs only for itself; leave it empty or set it to %q", who.Tenant)
	}
	s.Tenant = who.Tenant
	return nil
}

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
