package manager

import (
	"context"
	"regexp"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Members is a Store whose managers keep its copies, so that a lost one can be replaced.
type Members interface {
	// ReplaceMember makes the others forget a member and expect a new one at a URL; empty:
	// at that of the old one. It returns all members as "name=URL,name=URL".
	ReplaceMember(ctx context.Context, name, peerURL string) (string, error)
}

// memberPattern is the names that a member can have in a list of members.
var memberPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,63}$`)

// ReplaceMember implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) ReplaceMember(ctx context.Context, req *connect.Request[dxpuv1.ReplaceMemberRequest]) (*connect.Response[dxpuv1.ReplaceMemberResponse], error) {
	r := req.Msg
	if !memberPattern.MatchString(r.Name) {
		return nil, invalid("name: %q is not 1 to 63 of A-Z, a-z, 0-9, '-', '_' and '.'", r.Name)
	}
	store, ok := s.m.cfg.Store.(Members)
	if !ok {
		return nil, errorf(connect.CodeFailedPrecondition, "the state of this pool is in the memory of one manager, which has no members to replace")
	}
	all, err := store.ReplaceMember(ctx, r.Name, r.PeerUrl)
	if err != nil {
		return nil, errorf(connect.CodeFailedPrecondition, "%v", err)
	}
	return updateResponse(ctx, s.m, func(t *tx, res *dxpuv1.ReplaceMemberResponse) error {
		res.InitialCluster = all
		t.event(&dxpuv1.Event{Type: dxpuv1.EventType_EVENT_TYPE_MANAGER_REPLACED}, "manager %s is to be replaced by a new one; the members are %s", r.Name, all)
		return nil
	})
}
