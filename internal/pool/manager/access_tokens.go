package manager

import (
	"context"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// maxTokens bounds the number of tokens.
const maxTokens = 10_000

func (s *poolService) CreateToken(ctx context.Context, req *connect.Request[dxpuv1.CreateTokenRequest]) (*connect.Response[dxpuv1.CreateTokenResponse], error) {
	r := req.Msg
	if err := checkToken(r); err != nil {
		return nil, err
	}
	return updateResponse(ctx, s.m, func(t *tx, res *dxpuv1.CreateTokenResponse) (err error) {
		if r.Tenant != "" && r.Tenant != defaultTenant && t.tenants.get(r.Tenant) == nil {
			return notFound("tenant: tenant", r.Tenant)
		}
		if old := t.tokenByRequest(r.RequestId); old != nil {
			res.Token, res.Secret, err = t.renewSecret(old, r, auth.From(ctx).Actor)
			return err
		}
		res.Token, res.Secret, err = t.createToken(r, auth.From(ctx).Actor)
		return err
	})
}

func checkToken(r *dxpuv1.CreateTokenRequest) error {
	switch r.Role {
	case dxpuv1.Role_ROLE_ADMIN, dxpuv1.Role_ROLE_OPERATOR:
		if r.Tenant != "" {
			return invalid("tenant: only tokens of ROLE_TENANT have one; leave it empty")
		}
	case dxpuv1.Role_ROLE_TENANT:
		if !tenantPattern.MatchString(r.Tenant) {
			return invalid("tenant: %q is not 1 to 63 of a-z, 0-9, '.', '_' and '-'", truncateText(r.Tenant))
		}
	default:
		return invalid("role: must be ROLE_ADMIN, ROLE_OPERATOR or ROLE_TENANT; nodes enrol with a join token")
	}
	return checkDuration("expires_after", r.ExpiresAfter)
}

// tokenByRequest returns the token that a call with a request_id created, nil for none.
// The tokens are few, and calls that create some are rare.
func (t *tx) tokenByRequest(id string) *tokenRecord {
	for _, r := range t.tokens.rows {
		if id != "" && r.RequestID == id {
			return r
		}
	}
	return nil
}

// renewSecret gives a token another secret for a call that is repeated, because the
// manager does not keep the first one. The answer with that one was lost, or a program
// made the call twice and keeps the last answer.
func (t *tx) renewSecret(old *tokenRecord, r *dxpuv1.CreateTokenRequest, caller string) (*dxpuv1.Token, string, error) {
	lifetime := time.Duration(0)
	if !old.ExpireTime.IsZero() {
		lifetime = old.ExpireTime.Sub(old.CreateTime)
	}
	if old.Creator != caller || old.Role != r.Role || old.Tenant != r.Tenant || old.Description != r.Description || lifetime != r.ExpiresAfter.AsDuration() {
		return nil, "", errorf(connect.CodeAlreadyExists, "request_id: %q was used for another token; use a new one", r.RequestId)
	}
	secret, hash := auth.NewSecret(old.ID)
	rec := t.tokens.edit(old.ID)
	rec.SecretHash = hash
	t.setTarget(rec.ID)
	t.event(&dxpuv1.Event{Type: dxpuv1.EventType_EVENT_TYPE_TOKEN_CHANGED}, "token %s for %s got another secret", rec.ID, tokenOwner(rec))
	return tokenMessage(rec), secret, nil
}

// createToken creates a token for a request that checkToken has accepted.
func (t *tx) createToken(r *dxpuv1.CreateTokenRequest, creator string) (*dxpuv1.Token, string, error) {
	if t.tokens.len() >= maxTokens {
		return nil, "", errorf(connect.CodeResourceExhausted, "the pool has %d tokens, which is the limit: delete some", maxTokens)
	}
	id, secret, hash := auth.NewToken()
	rec := &tokenRecord{
		ID: id, Role: r.Role, Tenant: r.Tenant, Description: r.Description, SecretHash: hash, CreateTime: t.now, Creator: creator, RequestID: r.RequestId,
	}
	if tenant := t.tenants.get(r.Tenant); tenant != nil {
		rec.TenantCreated = tenant.Created
	}
	if r.ExpiresAfter != nil {
		t.mark(subject{tokenSubject, id})
		rec.ExpireTime = t.now.Add(r.ExpiresAfter.AsDuration())
	}
	t.tokens.put(id, rec)
	t.setTarget(id)
	t.event(&dxpuv1.Event{Type: dxpuv1.EventType_EVENT_TYPE_TOKEN_CHANGED}, "token %s was created for %s", id, tokenOwner(rec))
	return tokenMessage(rec), secret, nil
}

// advanceToken removes a token that has expired. So it stays invalid when the clock is
// set back.
func (t *tx) advanceToken(id string) {
	r := t.tokens.get(id)
	if r.ExpireTime.IsZero() || !t.dueOrSchedule(subject{tokenSubject, id}, r.ExpireTime) {
		return
	}
	t.tokens.remove(id)
	t.event(&dxpuv1.Event{Type: dxpuv1.EventType_EVENT_TYPE_TOKEN_CHANGED}, "token %s of %s has expired", id, tokenOwner(r))
}

// deleteTokensOf removes the tokens of a tenant.
func (t *tx) deleteTokensOf(tenant string) {
	for _, id := range t.tokens.ids() {
		if r := t.tokens.get(id); r.Tenant == tenant {
			t.tokens.remove(id)
			t.event(&dxpuv1.Event{Type: dxpuv1.EventType_EVENT_TYPE_TOKEN_CHANGED}, "token %s of %s was deleted with it", id, tokenOwner(r))
		}
	}
}

func tokenOwner(r *tokenRecord) string {
	if r.Tenant != "" {
		return "tenant " + r.Tenant
	}
	return "the role " + auth.RoleWord(r.Role)
}

func tokenMessage(r *tokenRecord) *dxpuv1.Token {
	return &dxpuv1.Token{
		Id: r.ID, Role: r.Role, Tenant: r.Tenant, Description: r.Description, CreateTime: timestamp(r.CreateTime),
		ExpireTime: timestamp(r.ExpireTime), Creator: r.Creator,
	}
}

func (s *poolService) ListTokens(ctx context.Context, req *connect.Request[dxpuv1.ListTokensRequest]) (*connect.Response[dxpuv1.ListTokensResponse], error) {
	return viewResponse(ctx, s.m, func(t *tx, res *dxpuv1.ListTokensResponse) (err error) {
		message := func(id string) *dxpuv1.Token { return tokenMessage(t.tokens.get(id)) }
		res.Tokens, res.NextPageToken, err = listPage(req.Msg, same, strings.Compare, allOf(t.tokens.ids()), message)
		return err
	})
}

func (s *poolService) DeleteToken(ctx context.Context, req *connect.Request[dxpuv1.DeleteTokenRequest]) (*connect.Response[dxpuv1.DeleteTokenResponse], error) {
	return updateResponse(ctx, s.m, func(t *tx, _ *dxpuv1.DeleteTokenResponse) error {
		r := t.tokens.get(req.Msg.TokenId)
		if r == nil {
			return notFound("token", truncateText(req.Msg.TokenId))
		}
		if r.Role == dxpuv1.Role_ROLE_ADMIN && r.ExpireTime.IsZero() && t.cfg.Open == OpenNever && t.isLastAdmin(r.ID) {
			return errorf(connect.CodeFailedPrecondition, "token_id: %s is the last admin token that does not expire; create another one first", r.ID)
		}
		t.tokens.remove(r.ID)
		t.event(&dxpuv1.Event{Type: dxpuv1.EventType_EVENT_TYPE_TOKEN_CHANGED}, "token %s of %s was deleted", r.ID, tokenOwner(r))
		return nil
	})
}

// isLastAdmin reports whether the pool would have no admin token without an
// expiry time if this one were deleted.
func (t *tx) isLastAdmin(id string) bool {
	for _, other := range t.tokens.ids() {
		if r := t.tokens.get(other); other != id && r.Role == dxpuv1.Role_ROLE_ADMIN && r.ExpireTime.IsZero() {
			return false
		}
	}
	return true
}

// FirstAdminToken creates an admin's token if the pool has none. It calls save with the
// token's text before the token is stored, so that a crash cannot lose it.
func (m *Manager) FirstAdminToken(ctx context.Context, save func(text string) error) error {
	err := m.update(ctx, func(t *tx) error {
		for _, id := range t.tokens.ids() {
			if t.tokens.get(id).Role == dxpuv1.Role_ROLE_ADMIN {
				return nil
			}
		}
		_, text, err := t.createToken(&dxpuv1.CreateTokenRequest{
			Role: dxpuv1.Role_ROLE_ADMIN, Description: "the first admin token, created at " + t.now.UTC().Format(time.DateTime),
		}, "")
		if err != nil {
			return err
		}
		return save(text)
	})
	if err != nil {
		return fmt.Errorf("manager: first admin token: %w", err)
	}
	return nil
}
