// Package auth identifies callers by tokens and certificates, and says what each
// role may do.
package auth

import (
	"context"
	"strings"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Identity is an authenticated caller. The zero Identity may do nothing.
type Identity struct {
	Actor  string      // a token's ID, a node's ID or Anonymous
	Role   dxpuv1.Role // ROLE_UNSPECIFIED: no credential
	Tenant string      // for ROLE_TENANT only
	Node   string      // node ID, for ROLE_HOST and ROLE_BOX only
}

// Anonymous is the actor of a caller without a credential.
const Anonymous = "anonymous"

// IsNode reports whether the caller is a host or a box.
func (id Identity) IsNode() bool { return id.Node != "" }

// RoleWord returns a role's name, such as "admin", or "" for ROLE_UNSPECIFIED.
func RoleWord(r dxpuv1.Role) string {
	if r == dxpuv1.Role_ROLE_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(r.String(), "ROLE_"))
}

// NodeRole returns the role of nodes of a kind, ROLE_UNSPECIFIED for an unknown kind.
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

// With returns a context that carries the caller's identity.
func With(ctx context.Context, id Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// From returns the identity that the context carries, or the zero Identity.
func From(ctx context.Context) Identity {
	id, _ := ctx.Value(identityKey{}).(Identity)
	return id
}
