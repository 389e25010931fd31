// Package auth says who a caller is and what callers of each role may do.
package auth

import (
	"context"
	"strings"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Identity is a caller as the manager knows it.
type Identity struct {
	// Actor is a token's ID, a node's ID or Anonymous.
	Actor string
	// Role is ROLE_UNSPECIFIED for a caller that nothing is known of.
	Role dxpuv1.Role
	// Tenant is set for callers of ROLE_TENANT only.
	Tenant string
	// Node is set for ROLE_HOST and ROLE_BOX only.
	Node string
}

// Anonymous is the actor of a caller without a credential.
const Anonymous = "anonymous"

// IsNode reports whether the caller is a host or a box.
func (id Identity) IsNode() bool { return id.Node != "" }

// RoleWord is a role as people write it: "admin", "" for ROLE_UNSPECIFIED.
func RoleWord(r dxpuv1.Role) string {
	if r == dxpuv1.Role_ROLE_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(r.String(), "ROLE_"))
}

// NodeRole is the role of a node of a kind, ROLE_UNSPECIFIED for no kind.
func NodeRole(k dxpuv1.NodeKind) dxpuv1.Role {
	switch k {
	case dxpuv1.NodeKind_NODE_KIND_HOST:
		return dxpuv1.Role_ROLE_HOST
	case dxpuv1.NodeKind_NODE_KIND_BOX:
		return dxpuv1.Role_ROLE_BOX
	default:
		return dxpuv1.Role_ROLE_UNSPECIFIED
	}
}

type identityKey struct{}

// With returns a context that carries the caller.
func With(ctx context.Context, id Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// From returns the caller that the context carries; the zero Identity, which
// may do nothing, where it carries none.
func From(ctx context.Context) Identity {
	id, _ := ctx.Value(identityKey{}).(Identity)
	return id
}
