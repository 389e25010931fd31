package manager

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/time/rate"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

const (
	// keepAudit is the number of entries that the audit log keeps: ten
	// megabytes at most.
	keepAudit = 10_000
	// maxAuditRequest bounds the request in an entry, in bytes.
	maxAuditRequest = 1 << 10
	// maxAuditCopy bounds a request whose beginning is in an entry, in bytes: all of it is written as JSON for it.
	maxAuditCopy = 256 << 10
	// Refused and failed calls are recorded at most at this rate, so that a flood
	// of them neither fills the log nor wears out the disk.
	auditRefusals      = 5 // in a second
	auditRefusalsBurst = 50
)

// refusals limits the audit entries of calls that changed nothing.
type refusals struct {
	mu     sync.Mutex // guards the fields below
	rate   *rate.Limiter
	missed int
}

// take reports whether an entry may be recorded, and how many entries were left
// out before it.
func (r *refusals) take(now time.Time) (missed int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rate == nil {
		r.rate = rate.NewLimiter(auditRefusals, auditRefusalsBurst)
	}
	if !r.rate.AllowN(now, 1) {
		r.missed++
		return 0, false
	}
	missed, r.missed = r.missed, 0
	return missed, true
}

// audit adds the entry of the transaction's call if the call has changed
// anything. The changes that the rules make afterwards have no actor.
func (t *tx) audit() {
	c := t.call
	t.call = nil
	if c == nil || !c.changes || t.changes() == 0 {
		return
	}
	t.auditEntry(c, nil)
	c.recorded = true
}

// setTarget names the object that the transaction's call has created.
func (t *tx) setTarget(id string) {
	if t.call != nil {
		t.call.target = id
	}
}

// auditEntry adds an entry and overwrites the oldest one if the log is full.
func (t *tx) auditEntry(c *call, err error) *auditRecord {
	rev := t.revision()
	r := &auditRecord{
		Revision: rev, Time: t.now, Actor: c.caller.Actor, Role: c.caller.Role, Tenant: c.caller.Tenant,
		Procedure: truncateText(c.procedure), Target: truncateText(c.target), Code: "ok", Peer: c.peer, Request: redacted(c.msg),
	}
	if r.Target == "" {
		r.Target = truncateText(targetOf(c.msg))
	}
	if err != nil {
		r.Code, r.Message = connect.CodeOf(err).String(), truncateText(message(err))
	}
	// The log is a ring: the newest entry overwrites the oldest.
	t.audits.put(sortable("", t.meta.Audits%keepAudit), r)
	t.meta.Audits++
	return r
}

// auditRefusal records a call that changed nothing because it was refused,
// failed, or had no effect.
func (m *Manager) auditRefusal(ctx context.Context, c *call, err error) {
	missed, ok := m.refused.take(m.cfg.Now())
	if !ok {
		return
	}
	// Record the attempt even if the caller has gone.
	storeErr := m.update(context.WithValue(context.WithoutCancel(ctx), callKey{}, (*call)(nil)), func(t *tx) error {
		r := t.auditEntry(c, err)
		if missed > 0 {
			r.Message += fmt.Sprintf(" (%d earlier entries were left out)", missed)
		}
		return nil
	})
	if storeErr != nil {
		m.log.Error("audit entry not stored", "err", forLog(storeErr))
	}
}

// redacted returns a request as JSON without its secrets, "" for no request.
func redacted(msg proto.Message) string {
	if msg == nil || !msg.ProtoReflect().IsValid() {
		return ""
	}
	if n := proto.Size(msg); n > maxAuditCopy {
		return fmt.Sprintf("(%d bytes)", n)
	}
	msg = proto.Clone(msg)
	redact(msg.ProtoReflect())
	raw, err := protojson.Marshal(msg)
	if err != nil {
		return ""
	}
	return truncate(string(raw), maxAuditRequest)
}

// secretFields lists the fields of the API that only the receiver may see. A
// test finds fields with a suspicious name that are missing here.
var secretFields = map[protoreflect.FullName]bool{
	"dxpu.v1.EnrollRequest.join_token":          true,
	"dxpu.v1.EnrollRequest.previous_credential": true,
	"dxpu.v1.EnrollResponse.credential":         true,
	"dxpu.v1.DesiredBinding.secret":             true,
	"dxpu.v1.CreateTokenResponse.secret":        true,
	"dxpu.v1.SignInRequest.id_token":            true,
	"dxpu.v1.SignInResponse.secret":             true,
	"dxpu.v1.BackupResponse.chunk":              true,
}

// redact removes every secret field, at any depth.
func redact(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case secretFields[f.FullName()]:
			m.Clear(f)
		case f.Message() == nil || f.IsMap() && f.MapValue().Message() == nil:
		case f.IsMap():
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				redact(v.Message())
				return true
			})
		case f.IsList():
			for i := range v.List().Len() {
				redact(v.List().Get(i).Message())
			}
		default:
			redact(v.Message())
		}
		return true
	})
}

// targetOf returns the ID of the object that a request names.
func targetOf(msg proto.Message) string {
	switch r := msg.(type) {
	case interface{ GetLeaseId() string }:
		return r.GetLeaseId()
	case interface{ GetGpuId() string }:
		return r.GetGpuId()
	case interface{ GetTarget() *dxpuv1.Target }:
		return r.GetTarget().GetGpuId() + r.GetTarget().GetBoxId() + r.GetTarget().GetHostId()
	case interface{ GetNodeId() string }:
		return r.GetNodeId()
	case interface{ GetTokenId() string }:
		return r.GetTokenId()
	case interface{ GetTenantId() string }:
		return r.GetTenantId()
	case *dxpuv1.PutTenantRequest:
		return r.GetTenant().GetId()
	case *dxpuv1.PlanMaintenanceRequest:
		m := r.GetMaintenance()
		return m.GetBoxId() + m.GetHostId() + m.GetRack()
	case interface{ GetMaintenanceId() string }:
		return r.GetMaintenanceId()
	case *dxpuv1.EnrollRequest:
		return r.GetName()
	case interface{ GetState() *dxpuv1.ObservedState }:
		return r.GetState().GetNodeId()
	}
	return ""
}

func auditMessage(r *auditRecord) *dxpuv1.AuditEntry {
	return &dxpuv1.AuditEntry{
		Revision: r.Revision, Time: timestamp(r.Time), Actor: r.Actor, Role: r.Role, Tenant: r.Tenant, Procedure: r.Procedure,
		Target: r.Target, Code: r.Code, Message: r.Message, Peer: r.Peer, Request: r.Request,
	}
}

func (s *poolService) ListAudit(ctx context.Context, req *connect.Request[dxpuv1.ListAuditRequest]) (*connect.Response[dxpuv1.ListAuditResponse], error) {
	r := req.Msg
	return viewResponse(ctx, s.m, func(t *tx, res *dxpuv1.ListAuditResponse) (err error) {
		res.Revision = t.meta.Revision
		if err := t.keepsAuditAfter(r.AfterRevision); err != nil {
			return err
		}
		var all []*auditRecord
		for _, e := range t.audits.rows {
			if e.Revision > r.AfterRevision && (r.Actor == "" || r.Actor == e.Actor) && (r.Target == "" || r.Target == e.Target) {
				all = append(all, e)
			}
		}
		slices.SortFunc(all, func(a, b *auditRecord) int { return cmp.Compare(b.Revision, a.Revision) })
		key := func(e *auditRecord) string { return sortable("", e.Revision) }
		order := func(a, b string) int { return strings.Compare(b, a) }
		if r.AfterRevision != 0 {
			slices.Reverse(all)
			order = strings.Compare
		}
		res.Entries, res.NextPageToken, err = listPage(r, key, order, allOf(all), auditMessage)
		return err
	})
}

// keepsAuditAfter returns an error unless the log has all entries after a revision. 0 asks
// for what there is.
func (t *tx) keepsAuditAfter(after uint64) error {
	if err := reached(t.meta.Revision, after); err != nil {
		return err
	}
	if after == 0 || t.meta.Audits <= keepAudit {
		return nil
	}
	oldest := after + 1
	for _, e := range t.audits.rows {
		oldest = min(oldest, e.Revision)
	}
	if oldest > after {
		return errorf(connect.CodeOutOfRange, "after_revision: entries since then are no longer kept; list without it")
	}
	return nil
}

func (s *poolService) WhoAmI(ctx context.Context, _ *connect.Request[dxpuv1.WhoAmIRequest]) (*connect.Response[dxpuv1.WhoAmIResponse], error) {
	who := auth.From(ctx)
	return connect.NewResponse(&dxpuv1.WhoAmIResponse{Actor: who.Actor, Role: who.Role, Tenant: who.Tenant}), nil
}
