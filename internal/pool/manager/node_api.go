package manager

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"regexp"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/internal/plural"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// nodeService implements the API for the proxies. Methods that it lacks answer
// UNIMPLEMENTED.
type nodeService struct {
	dxpuv1connect.UnimplementedNodeServiceHandler
	m *Manager
}

var nodeNamePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,62}$`)

// errCredential is the answer to every caller with a wrong node credential.
func errCredential() error {
	return errorf(connect.CodeUnauthenticated, "unknown node or wrong credential: enrol again with a join token")
}

func (s *nodeService) Enroll(ctx context.Context, req *connect.Request[dxpuv1.EnrollRequest]) (*connect.Response[dxpuv1.EnrollResponse], error) {
	r := req.Msg
	if !s.m.mayJoin(r.JoinToken) {
		if err := s.m.limits.countUnauthenticated(callFrom(ctx), s.m.cfg.Now()); err != nil {
			return nil, err
		}
		return nil, errorf(connect.CodeUnauthenticated, "join_token: wrong; ask the pool's operator for the current one")
	}
	if !nodeNamePattern.MatchString(r.Name) {
		return nil, invalid("name: %q is not 1 to 63 of a-z, 0-9, '-' and '.', beginning with a letter or digit", r.Name)
	}
	if r.Kind != dxpuv1.NodeKind_NODE_KIND_HOST && r.Kind != dxpuv1.NodeKind_NODE_KIND_BOX {
		return nil, invalid("kind: must be NODE_KIND_HOST or NODE_KIND_BOX")
	}
	csr, _, err := s.m.parseRequest(ctx, r.CsrPem)
	if err != nil {
		return nil, apiError(err)
	}
	credential := rand.Text() + rand.Text()
	return updateResponse(ctx, s.m, func(t *tx, res *dxpuv1.EnrollResponse) (err error) {
		n := t.nodes.get(r.Name)
		switch {
		case r.PreviousCredential != "" && t.wasDeleted(r.PreviousCredential):
			return denied("name: %s was deleted from this pool; empty its state directory and start it again to enrol it as a new node", r.Name)
		case n != nil && n.Deleting:
			return errorf(connect.CodeFailedPrecondition, "name: %s is being deleted; try again later", n.ID)
		case n == nil:
			t.meta.NodeNumber++
			n = &nodeRecord{ID: r.Name, Kind: r.Kind, Number: t.meta.NodeNumber}
			t.nodes.put(n.ID, n)
			t.touch(n.ID)
			t.event(nodeEvent(n, dxpuv1.EventType_EVENT_TYPE_NODE_ENROLLED), "%s %s enrolled", kindWord(n.Kind), n.ID)
		case n.Kind != r.Kind:
			// Not ALREADY_EXISTS, after which a node tries again: its name is one that it can never have.
			return invalid("name: %s is a %s of this pool, and this node is a %s: choose another name, or delete the %s if it is gone for ever (dxpu node delete %s)",
				n.ID, kindWord(n.Kind), kindWord(r.Kind), kindWord(n.Kind), n.ID)
		case t.connected(n.ID) && !auth.Matches(r.PreviousCredential, n.CredentialHash):
			return errorf(connect.CodeAlreadyExists, "name: %s is in use by another node, which is connected; choose another name, or stop that node", n.ID)
		}
		n = t.nodes.edit(n.ID)
		n.CredentialHash = auth.Hash(credential)
		n.ResourceVersion = t.revision()
		n.Version = truncateText(r.Version)
		n.Certificates = nil // this revokes the old ones
		res.NodeId, res.Credential, res.HeartbeatInterval = r.Name, credential, durationpb.New(t.cfg.Heartbeat)
		res.ClusterId, res.NodeNumber, res.KnowsLocalPeers = t.meta.ClusterID, n.Number, true
		if csr != nil {
			authority, err := s.m.ca.load(t) // that of this transaction: a step may have been taken since
			if err != nil {
				return err
			}
			res.CaPem = string(authority.PEM())
			if res.CertificatePem, err = t.issue(authority, csr, n, ""); err != nil {
				return err
			}
		}
		return err
	})
}

// mayJoin reports whether a join token is one of those that are valid at the moment.
func (m *Manager) mayJoin(token string) bool {
	found := 0
	for _, valid := range m.cfg.joinTokens() {
		found |= subtle.ConstantTimeCompare([]byte(token), []byte(valid))
	}
	return found == 1
}

// exists returns an error if the node was deleted after its call was admitted.
func exists(t *tx, node string) error {
	if t.nodes.get(node) == nil {
		return errCredential()
	}
	return nil
}

func (s *nodeService) WatchDesired(ctx context.Context, req *connect.Request[dxpuv1.WatchDesiredRequest], stream *connect.ServerStream[dxpuv1.DesiredState]) error {
	known, sent := req.Msg.KnownRevision, false
	over := s.m.termEnded()
	var watched *liveNode // nil: the watch is not counted yet
	defer func() { s.m.watchEnds(watched) }()
	for {
		var d *dxpuv1.DesiredState
		var changed <-chan struct{}
		err := s.m.view(func(t *tx) error {
			if err := exists(t, req.Msg.NodeId); err != nil {
				return err
			}
			n := t.nodes.get(req.Msg.NodeId)
			l := s.m.liveLocked(n.ID)
			changed = l.changed
			if watched == nil {
				watched = l
				l.watches++
			}
			if req.Msg.ClusterId != t.meta.ClusterID && !sent {
				known = 0 // known is a revision of another pool
			}
			if n.DesiredRevision != known {
				d = t.desired(n)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if d != nil {
			if err := stream.Send(d); err != nil {
				return err
			}
			known, sent = d.Revision, true
			continue // the state may have changed meanwhile
		}
		idling(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-over:
			return nil
		case <-changed:
		}
	}
}

func (s *nodeService) Report(ctx context.Context, req *connect.Request[dxpuv1.ReportRequest]) (*connect.Response[dxpuv1.ReportResponse], error) {
	o := req.Msg.State
	if o == nil {
		return nil, invalid("state: must be set")
	}
	if err := checkReport(o); err != nil {
		return nil, err
	}
	renew := false
	revision, heartbeat, err := s.m.report(ctx, o, func(t *tx) error {
		if err := exists(t, o.NodeId); err != nil {
			return err
		}
		s.m.liveLocked(o.NodeId) // the first report shows the certificate, too
		renew = s.m.renewals.ask(t, o.NodeId, presented(ctx))
		return nil
	})
	if err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(&dxpuv1.ReportResponse{
		DesiredRevision: revision, HeartbeatInterval: durationpb.New(heartbeat), RenewCertificate: renew, KnowsLocalPeers: true,
	}), nil
}

// forgetRetry is the interval at which a node that is being deleted is examined.
const forgetRetry = time.Second

func (s *poolService) DeleteNode(ctx context.Context, req *connect.Request[dxpuv1.DeleteNodeRequest]) (*connect.Response[dxpuv1.DeleteNodeResponse], error) {
	r := req.Msg
	return updateResponse(ctx, s.m, func(t *tx, _ *dxpuv1.DeleteNodeResponse) error {
		n := t.nodes.get(r.NodeId)
		switch {
		case n == nil:
			return notFound("node", truncateText(r.NodeId))
		case r.ResourceVersion != 0 && r.ResourceVersion != n.ResourceVersion:
			return conflict("node", n.ID, n.ResourceVersion, r.ResourceVersion)
		case len(t.bindingsAt(n.ID)) > 0 && !r.Force:
			return errorf(connect.CodeFailedPrecondition,
				"%s %s has %s: drain it first, or set force to remove them", kindWord(n.Kind), n.ID, plural.Count(len(t.bindingsAt(n.ID)), "binding", "bindings"))
		}
		t.deleteNode(n.ID)
		return nil
	})
}

// deleteNode revokes the credentials of a node at once and takes its bindings
// down. The record remains until nothing is bound at the node.
func (t *tx) deleteNode(id string) {
	t.touch(id)
	n := t.nodes.edit(id)
	n.Deleting = true
	t.rememberDeleted(n.CredentialHash)
	n.CredentialHash, n.Certificates = nil, nil
	if n.Cordon == nil {
		n.Cordon = &cordon{Reason: "it was deleted"}
	}
	t.event(nodeEvent(n, dxpuv1.EventType_EVENT_TYPE_NODE_REMOVED),
		"%s %s was deleted: its credential and its certificate are revoked", kindWord(n.Kind), id)
	for _, bid := range t.bindingsAt(id) {
		b := t.bindings.edit(bid)
		why := fmt.Sprintf("%s %s was deleted", kindWord(n.Kind), id)
		// The node does not answer any more: the other side fences it off.
		if n.Kind == dxpuv1.NodeKind_NODE_KIND_BOX {
			b.BoxClear = true
			if b.moving() {
				t.failMigration(b, why)
			}
			if b.serving() {
				t.failBinding(bid, lost, dxpuv1.Reason_REASON_BOX_LOST, why)
			}
			continue
		}
		if l := t.leases.get(b.LeaseID); l != nil && !l.ended() {
			t.endLease(l.ID, dxpuv1.Reason_REASON_LEASE_DELETED, why, false)
		}
		t.bindings.edit(bid).HostClear = true
	}
	t.advanceDeletion(id)
}

const (
	deletedNodesID = "deleted-nodes" // the record of the credentials of deleted nodes
	// maxDeletedNodes bounds it; the oldest are dropped.
	maxDeletedNodes = 4096
)

// rememberDeleted records the credential of a deleted node. The node still has
// the join token, but must not enrol again by itself.
func (t *tx) rememberDeleted(hash []byte) {
	next := &secretRecord{}
	if old := t.secrets.get(deletedNodesID); old != nil {
		next.Deleted = slices.Clone(old.Deleted[max(0, len(old.Deleted)+1-maxDeletedNodes):])
	}
	next.Deleted = append(next.Deleted, hash)
	t.secrets.put(deletedNodesID, next)
}

// wasDeleted reports whether a credential belonged to a deleted node.
func (t *tx) wasDeleted(credential string) bool {
	r := t.secrets.get(deletedNodesID)
	hash := auth.Hash(credential)
	return r != nil && slices.ContainsFunc(r.Deleted, func(h []byte) bool { return bytes.Equal(h, hash) })
}

// advanceDeletion removes the record of a deleted node once nothing is bound there.
func (t *tx) advanceDeletion(id string) {
	if len(t.bindingsAt(id)) == 0 {
		t.nodes.remove(id)
		t.forgetHistory(id)
		return
	}
	t.dueOrSchedule(subject{nodeSubject, id}, t.now.Add(forgetRetry))
}
