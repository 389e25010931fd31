package manager

import (
	"context"

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
		err := g.m.allow(c, req.Any())
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
	err := s.m.allow(s.c, msg)
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
func (m *Manager) allow(c *call, msg any) error {
	c.msg, _ = msg.(proto.Message)
	rule, _ := auth.Lookup(c.procedure)
	switch rule.For(c.caller.Role) {
	case auth.Allow:
		return nil
	case auth.Own:
		return m.peek(func(t *tx) error { return t.checkOwn(c.caller, msg) })
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
	case *dxpuv1.GetLeaseRequest, *dxpuv1.DeleteLeaseRequest, *dxpuv1.ResizeLeaseRequest:
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
	case *dxpuv1.GetTenantRequest:
		if r.TenantId != who.Tenant {
			return notFound("tenant", r.TenantId)
		}
		return nil
	case *dxpuv1.GetPoolRequest, *dxpuv1.WhoAmIRequest, *dxpuv1.ListHostsRequest, *dxpuv1.GetHostRequest, *dxpuv1.ListGPUsRequest,
		*dxpuv1.GetGPURequest, *dxpuv1.ListLeasesRequest, *dxpuv1.ListEventsRequest, *dxpuv1.WatchEventsRequest:
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
	if l := t.leases.get(id); l == nil || !scopeFor(who).lease(l) {
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
