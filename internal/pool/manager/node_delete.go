package manager

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// forgetRetry is the interval at which a node that is being deleted is
// examined.
const forgetRetry = time.Second

// DeleteNode implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) DeleteNode(ctx context.Context, req *connect.Request[dxpuv1.DeleteNodeRequest]) (*connect.Response[dxpuv1.DeleteNodeResponse], error) {
	r := req.Msg
	err := s.m.update(ctx, func(t *tx) error {
		n := t.nodes.get(r.NodeId)
		switch {
		case n == nil:
			return notFound("node", truncateText(r.NodeId))
		case r.ResourceVersion != 0 && r.ResourceVersion != n.ResourceVersion:
			return conflict("node", n.ID, n.ResourceVersion, r.ResourceVersion)
		case len(t.bindingsAt(n.ID)) > 0 && !r.Force:
			return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf(
				"%s %s has %d bindings: drain it first, or set force to remove them", kindWord(n.Kind), n.ID, len(t.bindingsAt(n.ID))))
		}
		t.deleteNode(n.ID)
		return nil
	})
	if err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(&dxpuv1.DeleteNodeResponse{}), nil
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
	t.event(nodeEvent(n, dxpuv1.EventType_EVENT_TYPE_NODE_REMOVED), "%s %s was deleted: its credential and its certificate are revoked", kindWord(n.Kind), id)
	for _, bid := range t.bindingsAt(id) {
		b := t.bindings.edit(bid)
		why := fmt.Sprintf("%s %s was deleted", kindWord(n.Kind), id)
		// The node does not answer any more: the other side fences it off.
		if n.Kind == dxpuv1.NodeKind_NODE_KIND_BOX {
			b.BoxClear = true
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
	// deletedNodesID is the record of the credentials of deleted nodes.
	deletedNodesID = "deleted-nodes"
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

// advanceDeletion removes the record of a deleted node once nothing is bound
// there.
func (t *tx) advanceDeletion(id string) {
	if len(t.bindingsAt(id)) == 0 {
		t.nodes.remove(id)
		return
	}
	t.dueOrSchedule(subject{nodeSubject, id}, t.now.Add(forgetRetry))
}
