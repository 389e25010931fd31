package torture

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/anishathalye/porcupine"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// admins is the number of clients that make, change and delete tenants and their tokens, and
// of those that use them. Each has the client's number clients and up.
const admins = 2

// access is what the admins have made.
type access struct {
	tenants []string
	tokens  []*token
	uses    []use
	// deletions are the calls that have deleted tenants: a token of one may become known later.
	deletions map[string]time.Time
}

// token is a token that a caller has the secret of.
type token struct {
	id, tenant, secret string
	// The call that revoked it, or deleted its tenant, began then and was acknowledged by
	// then; zero: there was none.
	began, revoked time.Time
}

// use is a call with a token.
type use struct {
	token     *token
	call, ret time.Time
	accepted  bool
}

// admin manages tenants and tokens until the storm is over.
func (h *history) admin(storm, deadline context.Context, id int, r *rand.Rand) error {
	for n := 0; storm.Err() == nil; n++ {
		var err error
		first := r.IntN(len(h.managers))
		switch k, tenant := r.IntN(100), h.anyTenant(r); {
		case tenant == "" || k < 10:
			err = h.putTenant(deadline, id, first, fmt.Sprintf("%s-%d-%d", h.tenant, id, n))
		case k < 30:
			err = h.changeTenant(deadline, id, first, tenant, fmt.Sprintf("%d-%d", id, n))
		case k < 36:
			err = h.deleteTenant(deadline, id, first, tenant)
		case k < 54:
			err = h.createToken(deadline, id, first, tenant)
		case k < 64:
			err = h.deleteToken(deadline, id, first, h.anyToken(r))
		default:
			err = h.useToken(deadline, id, first, h.anyToken(r), r)
		}
		if err != nil {
			return fmt.Errorf("admin %d: %w", id, err)
		}
		wait(storm, time.Duration(r.IntN(60))*time.Millisecond)
	}
	return nil
}

func (h *history) anyTenant(r *rand.Rand) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.tenants) == 0 {
		return ""
	}
	return h.tenants[max(0, len(h.tenants)-1-r.IntN(3))]
}

func (h *history) anyToken(r *rand.Rand) *token {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.tokens) == 0 {
		return nil
	}
	return h.tokens[max(0, len(h.tokens)-1-r.IntN(4))]
}

// putTenant makes a tenant. When an attempt may still be under way, the tenant is left alone:
// the attempt would undo the change of another caller.
func (h *history) putTenant(ctx context.Context, client, first int, id string) error {
	call := time.Now()
	t, ambiguous, err := h.callPutTenant(ctx, client, first, &dxpuv1.Tenant{Id: id, Description: "new"})
	if err != nil || ambiguous {
		return err
	}
	h.recordAccess(client, call, accessInput{kind: "put", key: id, value: "new"}, accessOutput{version: t.ResourceVersion})
	h.mu.Lock()
	h.tenants = append(h.tenants, id)
	h.mu.Unlock()
	return nil
}

func (p *pool) callPutTenant(ctx context.Context, client, first int, t *dxpuv1.Tenant) (*dxpuv1.Tenant, bool, error) {
	res, ambiguous, err := ask(ctx, p, client, first, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.PutTenantResponse], error) {
		return api.PutTenant(ctx, connect.NewRequest(&dxpuv1.PutTenantRequest{Tenant: t}))
	})
	if err != nil {
		return nil, ambiguous, err
	}
	return res.Msg.Tenant, ambiguous, nil
}

// readTenant returns a tenant's version and description; 0: there is none.
func (h *history) readTenant(ctx context.Context, client, first int, id string) (accessOutput, error) {
	call := time.Now()
	res, _, err := ask(ctx, h.pool, client, first, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.GetTenantResponse], error) {
		return api.GetTenant(ctx, connect.NewRequest(&dxpuv1.GetTenantRequest{TenantId: id}))
	})
	out := accessOutput{}
	switch {
	case err == nil:
		out.version, out.value = res.Msg.Tenant.ResourceVersion, res.Msg.Tenant.Description
	case connect.CodeOf(err) != connect.CodeNotFound:
		return out, fmt.Errorf("get tenant %s: %w", id, err)
	}
	h.recordAccess(client, call, accessInput{kind: "read", key: id}, out)
	return out, nil
}

// changeTenant changes a tenant that is still as the client has read it.
func (h *history) changeTenant(ctx context.Context, client, first int, id, value string) error {
	read, err := h.readTenant(ctx, client, first, id)
	if err != nil || read.version == 0 {
		return err
	}
	call := time.Now()
	t, ambiguous, err := h.callPutTenant(ctx, client, first, &dxpuv1.Tenant{Id: id, Description: value, ResourceVersion: read.version})
	out := accessOutput{ambiguous: ambiguous}
	if err == nil {
		out.version = t.ResourceVersion
	} else if out.version, out.conflict = currentVersion(err); !out.conflict {
		return fmt.Errorf("put tenant %s: %w", id, err)
	}
	h.recordAccess(client, call, accessInput{kind: "put", key: id, version: read.version, value: value}, out)
	return nil
}

// deleteTenant deletes a tenant, and its tokens with it.
func (h *history) deleteTenant(ctx context.Context, client, first int, id string) error {
	read, err := h.readTenant(ctx, client, first, id)
	if err != nil || read.version == 0 {
		return err
	}
	call := time.Now()
	ambiguous, err := h.callDeleteTenant(ctx, client, first, id, read.version)
	out := accessOutput{ambiguous: ambiguous}
	gone := err == nil || connect.CodeOf(err) == connect.CodeNotFound
	if !gone {
		if out.version, out.conflict = currentVersion(err); !out.conflict {
			return fmt.Errorf("delete tenant %s: %w", id, err)
		}
	}
	out.missing = err != nil && gone
	h.recordAccess(client, call, accessInput{kind: "delete", key: id, version: read.version}, out)
	if gone {
		h.mu.Lock()
		h.deletions[id] = call
		h.mu.Unlock()
		h.revoking(call, func(k *token) bool { return k.tenant == id })
	}
	return nil
}

func (p *pool) callDeleteTenant(ctx context.Context, client, first int, id string, version uint64) (ambiguous bool, err error) {
	_, ambiguous, err = ask(ctx, p, client, first, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.DeleteTenantResponse], error) {
		return api.DeleteTenant(ctx, connect.NewRequest(&dxpuv1.DeleteTenantRequest{TenantId: id, ResourceVersion: version}))
	})
	return ambiguous, err
}

// revoking records that tokens have been revoked by a call that began at a time.
func (h *history) revoking(call time.Time, of func(*token) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range h.tokens {
		if !of(k) {
			continue
		}
		if k.began.IsZero() || call.Before(k.began) {
			k.began = call
		}
		if k.revoked.IsZero() {
			k.revoked = time.Now()
		}
	}
}

// createToken creates a token of a tenant. An attempt without an answer leaves one that no
// caller knows.
func (h *history) createToken(ctx context.Context, client, first int, tenant string) error {
	call := time.Now()
	res, _, err := ask(ctx, h.pool, client, first, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.CreateTokenResponse], error) {
		return api.CreateToken(ctx, connect.NewRequest(&dxpuv1.CreateTokenRequest{Role: dxpuv1.Role_ROLE_TENANT, Tenant: tenant}))
	})
	missing := connect.CodeOf(err) == connect.CodeNotFound
	if err != nil && !missing {
		return fmt.Errorf("create a token of %s: %w", tenant, err)
	}
	h.recordAccess(client, call, accessInput{kind: "token", key: tenant}, accessOutput{missing: err != nil})
	if err == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.tokens = append(h.tokens, &token{id: res.Msg.Token.Id, tenant: tenant, secret: res.Msg.Secret, began: h.deletions[tenant]})
	}
	return nil
}

func (h *history) deleteToken(ctx context.Context, client, first int, k *token) error {
	if k == nil {
		return nil
	}
	call := time.Now()
	_, _, err := ask(ctx, h.pool, client, first, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.DeleteTokenResponse], error) {
		return api.DeleteToken(ctx, connect.NewRequest(&dxpuv1.DeleteTokenRequest{TokenId: k.id}))
	})
	if err != nil && connect.CodeOf(err) != connect.CodeNotFound {
		return fmt.Errorf("delete token %s: %w", k.id, err)
	}
	h.revoking(call, func(o *token) bool { return o == k })
	return nil
}

// useToken makes a call with a token.
func (h *history) useToken(ctx context.Context, client, first int, k *token, r *rand.Rand) error {
	if k == nil {
		return nil
	}
	call, list := time.Now(), r.IntN(2) == 0
	_, _, err := ask(ctx, h.pool, client, first, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (any, error) {
		if list {
			return api.ListLeases(ctx, withToken(&dxpuv1.ListLeasesRequest{Tenant: k.tenant}, k))
		}
		return api.WhoAmI(ctx, withToken(&dxpuv1.WhoAmIRequest{}, k))
	})
	if err != nil && connect.CodeOf(err) != connect.CodeUnauthenticated {
		return fmt.Errorf("a call with token %s: %w", k.id, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.uses = append(h.uses, use{token: k, call: call, ret: time.Now(), accepted: err == nil})
	return nil
}

func withToken[T any](msg *T, k *token) *connect.Request[T] {
	req := connect.NewRequest(msg)
	req.Header().Set("Authorization", "Bearer "+k.secret)
	return req
}

// checkTokens checks that no call was accepted after an acknowledged revocation, and none
// refused before a revocation began.
func (h *history) checkTokens() error {
	for _, u := range h.uses {
		k := u.token
		at := func(t time.Time) string { return fmt.Sprintf("%.3f s", t.Sub(h.start).Seconds()) }
		switch {
		case u.accepted && !k.revoked.IsZero() && k.revoked.Before(u.call):
			return fmt.Errorf("token %s of %s was revoked until %s, and accepted in a call at %s", k.id, k.tenant, at(k.revoked), at(u.call))
		case !u.accepted && (k.began.IsZero() || u.ret.Before(k.began)):
			return fmt.Errorf("token %s of %s was refused in a call from %s to %s, before it was revoked", k.id, k.tenant, at(u.call), at(u.ret))
		}
	}
	return nil
}

// endAccess deletes the tenants of a history and tokens with them.
func (p *pool) endAccess(ctx context.Context, tenant string) error {
	res, _, err := ask(ctx, p, 0, 0, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.ListTenantsResponse], error) {
		return api.ListTenants(ctx, connect.NewRequest(&dxpuv1.ListTenantsRequest{PageSize: 1000}))
	})
	if err != nil {
		return err
	}
	for _, t := range res.Msg.Tenants {
		if t.CreateTime == nil || t.Id != tenant && !strings.HasPrefix(t.Id, tenant+"-") {
			continue
		}
		if _, err := p.callDeleteTenant(ctx, 0, 0, t.Id, 0); err != nil && connect.CodeOf(err) != connect.CodeNotFound {
			return fmt.Errorf("delete tenant %s: %w", t.Id, err)
		}
	}
	return nil
}

// examineTokens deletes the tenants of the history. Their tokens are refused then.
func (h *history) examineTokens(ctx context.Context) error {
	h.limit("")
	call := time.Now()
	if err := h.endAccess(ctx, h.tenant); err != nil {
		return err
	}
	h.revoking(call, func(*token) bool { return true })
	for _, k := range h.tokens[max(0, len(h.tokens)-4):] {
		if err := h.useToken(ctx, 0, 0, k, rand.New(rand.NewPCG(1, 1))); err != nil {
			return err
		}
	}
	return h.checkTokens()
}

// resolveAccess finds out which changes of unknown effect have happened: their values were read.
func (h *history) resolveAccess() {
	read := map[[2]string]uint64{}
	for _, o := range h.accessOps {
		if in, out := o.Input.(accessInput), o.Output.(accessOutput); in.kind == "read" && out.value != "" {
			read[[2]string{in.key, out.value}] = out.version
		}
	}
	kept := h.accessOps[:0]
	for _, o := range h.accessOps {
		in, out := o.Input.(accessInput), o.Output.(accessOutput)
		if in.kind == "put" && out.ambiguous && out.conflict {
			version := read[[2]string{in.key, in.value}]
			if version == 0 {
				continue // it was never seen, so it does not matter
			}
			o.Output = accessOutput{version: version}
		}
		kept = append(kept, o)
	}
	h.accessOps = slices.SortedFunc(slices.Values(kept), func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
}
