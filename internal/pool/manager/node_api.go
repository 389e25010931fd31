package manager

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"regexp"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
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
	return connect.NewError(connect.CodeUnauthenticated, errors.New("unknown node or wrong credential: enrol again with a join token"))
}

// Enroll implements dxpuv1connect.NodeServiceHandler.
func (s *nodeService) Enroll(ctx context.Context, req *connect.Request[dxpuv1.EnrollRequest]) (*connect.Response[dxpuv1.EnrollResponse], error) {
	r := req.Msg
	if subtle.ConstantTimeCompare([]byte(r.JoinToken), []byte(s.m.cfg.JoinToken)) != 1 {
		if err := s.m.limits.countUnauthenticated(callFrom(ctx), s.m.cfg.Now()); err != nil {
			return nil, err
		}
		return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("join_token: wrong; ask the pool's operator for the current one"))
	}
	if !nodeNamePattern.MatchString(r.Name) {
		return nil, invalid("name: %q is not 1 to 63 of a-z, 0-9, '-' and '.', beginning with a letter or digit", r.Name)
	}
	if r.Kind != dxpuv1.NodeKind_NODE_KIND_HOST && r.Kind != dxpuv1.NodeKind_NODE_KIND_BOX {
		return nil, invalid("kind: must be NODE_KIND_HOST or NODE_KIND_BOX")
	}
	csr, authority, err := s.m.parseRequest(ctx, r.CsrPem)
	if err != nil {
		return nil, apiError(err)
	}
	credential := rand.Text() + rand.Text()
	res := &dxpuv1.EnrollResponse{
		NodeId: r.Name, Credential: credential, HeartbeatInterval: durationpb.New(s.m.cfg.Heartbeat),
	}
	err = s.m.update(ctx, func(t *tx) (err error) {
		n := t.nodes.get(r.Name)
		switch {
		case r.PreviousCredential != "" && t.wasDeleted(r.PreviousCredential):
			return denied("name: %s was deleted from this pool; empty its state directory and start it again to enrol it as a new node", r.Name)
		case n != nil && n.Deleting:
			return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("name: %s is being deleted; try again later", n.ID))
		case n == nil:
			t.meta.NodeNumber++
			n = &nodeRecord{ID: r.Name, Kind: r.Kind, Number: t.meta.NodeNumber}
			t.nodes.put(n.ID, n)
			t.touch(n.ID)
			t.event(nodeEvent(n, dxpuv1.EventType_EVENT_TYPE_NODE_ENROLLED), "%s %s enrolled", kindWord(n.Kind), n.ID)
		case n.Kind != r.Kind:
			return connect.NewError(connect.CodeAlreadyExists, fmt.Errorf("name: %s is a %s; choose another name", n.ID, kindWord(n.Kind)))
		case t.connected(n.ID) && !auth.Matches(r.PreviousCredential, n.CredentialHash):
			return connect.NewError(connect.CodeAlreadyExists, fmt.Errorf("name: %s is in use by a connected node; choose another name or stop that node", n.ID))
		}
		n = t.nodes.edit(n.ID)
		n.CredentialHash = auth.Hash(credential)
		n.ResourceVersion = t.revision()
		n.Version = truncateText(r.Version)
		n.Certificates = nil // this revokes the old ones
		res.ClusterId, res.NodeNumber = t.meta.ClusterID, n.Number
		if csr != nil {
			res.CaPem = string(authority.PEM())
			res.CertificatePem, err = t.issue(authority, csr, n, "")
		}
		return err
	})
	if err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(res), nil
}

// exists returns an error if the node was deleted after its call was admitted.
func exists(t *tx, node string) error {
	if t.nodes.get(node) == nil {
		return errCredential()
	}
	return nil
}

// WatchDesired implements dxpuv1connect.NodeServiceHandler.
func (s *nodeService) WatchDesired(ctx context.Context, req *connect.Request[dxpuv1.WatchDesiredRequest], stream *connect.ServerStream[dxpuv1.DesiredState]) error {
	known, sent := req.Msg.KnownRevision, false
	over := s.m.termEnded()
	for {
		var d *dxpuv1.DesiredState
		var changed <-chan struct{}
		err := s.m.view(func(t *tx) error {
			if err := exists(t, req.Msg.NodeId); err != nil {
				return err
			}
			n := t.nodes.get(req.Msg.NodeId)
			changed = s.m.liveLocked(n.ID).changed
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

// Report implements dxpuv1connect.NodeServiceHandler.
func (s *nodeService) Report(ctx context.Context, req *connect.Request[dxpuv1.ReportRequest]) (*connect.Response[dxpuv1.ReportResponse], error) {
	o := req.Msg.State
	if o == nil {
		return nil, invalid("state: must be set")
	}
	if err := checkReport(o); err != nil {
		return nil, err
	}
	revision, heartbeat, err := s.m.report(ctx, o, func(t *tx) error { return exists(t, o.NodeId) })
	if err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(&dxpuv1.ReportResponse{
		DesiredRevision: revision, HeartbeatInterval: durationpb.New(heartbeat),
	}), nil
}
