// Package auth says who a caller is and what callers of each role may do.
package auth

import (
	"context"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Identity is a caller as the manager knows it.
type Identity struct {
	// Actor is a token's ID, a node's ID or "anonymous".
	Actor string
	Role  dxpuv1.Role
	// Tenant is set for callers of ROLE_TENANT only.
	Tenant string
	// Node is set for ROLE_HOST and ROLE_BOX only.
	Node string
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
