package manager

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/oidc"
)

// Single sign-on. A person signs in at an OpenID provider, and exchanges the ID
// token for a token of the pool, which ends after some hours. So everything that holds for
// tokens holds for persons: the audit log names them, an admin can delete them, and no call
// but the exchange depends on the provider.

// signInLife is the default lifetime of a token for a person: a working day.
const signInLife = 12 * time.Hour

// maxSignedIn bounds the tokens of a person, so that one person cannot use up those of the pool. An
// older one is not deleted for a new one: its ID token could then be used again.
const maxSignedIn = 64

// signInRequest begins the request_id of tokens of persons.
const signInRequest = "oidc/"

// signedIn returns how many tokens a person has.
func (t *tx) signedIn(person string) (n int) {
	for _, r := range t.tokens.rows {
		if r.Creator == person && strings.HasPrefix(r.RequestID, signInRequest) {
			n++
		}
	}
	return n
}

func errNoSignIn() error {
	return errorf(connect.CodeFailedPrecondition, "the pool has no single sign-on (dxpu manager --oidc-issuer): use a token")
}

// GetSignIn implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) GetSignIn(context.Context, *connect.Request[dxpuv1.GetSignInRequest]) (*connect.Response[dxpuv1.GetSignInResponse], error) {
	res := &dxpuv1.GetSignInResponse{}
	if p := s.m.cfg.SignIn; p != nil {
		res.Issuer, res.ClientId = p.Issuer(), p.ClientID()
	}
	return connect.NewResponse(res), nil
}

// SignIn implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) SignIn(ctx context.Context, req *connect.Request[dxpuv1.SignInRequest]) (*connect.Response[dxpuv1.SignInResponse], error) {
	provider := s.m.cfg.SignIn
	if provider == nil {
		return nil, errNoSignIn()
	}
	if c := callFrom(ctx); c != nil { // each call may cost a request to the provider
		if err := s.m.limits.countUnauthenticated(c, s.m.cfg.Now()); err != nil {
			return nil, err
		}
	}
	person, err := provider.Verify(ctx, req.Msg.IdToken)
	switch {
	case errors.Is(err, oidc.ErrUnavailable):
		s.m.log.Warn("sign-in", "issuer", provider.Issuer(), "err", truncateText(err.Error()))
		return nil, unavailable("the provider of single sign-on does not answer; try again")
	case errors.Is(err, oidc.ErrNoGrant):
		return nil, denied("%s is known to the provider, but has no role in this pool: ask an admin (--oidc-grant)", truncateText(person.Name))
	case err != nil:
		s.m.log.Warn("sign-in", "issuer", provider.Issuer(), "err", truncateText(err.Error()))
		return nil, unauthenticated("the ID token is not valid for this pool, or no longer valid: sign in again")
	}
	r := &dxpuv1.CreateTokenRequest{
		Role: person.Role, Tenant: person.Tenant, ExpiresAfter: durationpb.New(cmp.Or(s.m.cfg.SignInLife, signInLife)),
		Description: truncateText("signed in as " + person.Name), RequestId: signInRequest + hex.EncodeToString(person.TokenHash[:]),
	}
	return updateResponse(ctx, s.m, func(t *tx, res *dxpuv1.SignInResponse) (err error) {
		if t.tokenByRequest(r.RequestId) != nil {
			return unauthenticated("the ID token was used before: sign in again")
		}
		if r.Tenant != "" && r.Tenant != defaultTenant && t.tenants.get(r.Tenant) == nil {
			return denied("%s belongs to tenant %s, which the pool does not have: ask an admin", truncateText(person.Name), r.Tenant)
		}
		if n := t.signedIn(truncateText(person.Name)); n >= maxSignedIn {
			return errorf(connect.CodeResourceExhausted, "%s is signed in %d times, which is the limit: wait until one ends, or ask an admin to delete some (dxpu token list)", truncateText(person.Name), n)
		}
		res.Token, res.Secret, err = t.createToken(r, truncateText(person.Name))
		return err
	})
}
