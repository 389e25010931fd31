//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/pflag"

	"github.com/dxpu-project/dxpu/internal/pool/manager"
	"github.com/dxpu-project/dxpu/internal/pool/oidc"
)

// signInOptions are the flags of "dxpu manager" for single sign-on.
type signInOptions struct {
	issuer, clientID string
	grants           []string
	life             time.Duration
}

func (o *signInOptions) register(f *pflag.FlagSet) {
	f.StringVar(&o.issuer, "oidc-issuer", "", "`URL` of an OpenID provider for single sign-on (\"dxpu login\")")
	f.StringVar(&o.clientID, "oidc-client-id", "", "`ID` of this pool at the provider: a public client with the device flow, or with http://127.0.0.1 and any port as its redirect URL")
	f.StringArrayVar(&o.grants, "oidc-grant", nil, "role of persons with a claim, `CLAIM=VALUE:ROLE`; ROLE is admin, operator or tenant/NAME; repeatable, the first that applies counts")
	positiveDurationVar(f, &o.life, "oidc-session", 12*time.Hour, "lifetime of the token that a person gets")
}

// apply checks the flags and sets the configuration.
func (o *signInOptions) apply(cfg *manager.Config) error {
	if o.issuer == "" {
		if o.clientID != "" || len(o.grants) > 0 {
			return errors.New("--oidc-client-id and --oidc-grant need --oidc-issuer")
		}
		return nil
	}
	if o.life < oidc.MinSession {
		return withHint(fmt.Errorf("--oidc-session: %s is too short", o.life), "at least %s: an ID token, which counts once, is remembered as long as the session", oidc.MinSession)
	}
	c := oidc.Config{Issuer: o.issuer, ClientID: o.clientID}
	for _, text := range o.grants {
		g, err := oidc.ParseGrant(text)
		if err != nil {
			return withHint(fmt.Errorf("--oidc-grant: %w", err), "for example groups=gpu-admins:admin, or groups=ml:tenant/team-a")
		}
		c.Grants = append(c.Grants, g)
	}
	if err := oidc.CheckIssuer(o.issuer); err != nil {
		return fmt.Errorf("--oidc-issuer: %w", err)
	}
	if err := c.Check(); err != nil {
		return withHint(fmt.Errorf("--oidc-issuer, --oidc-client-id, --oidc-grant: %w", err), "single sign-on needs all three")
	}
	cfg.SignIn, cfg.SignInLife = oidc.New(c), o.life
	return nil
}

// signInTimeout bounds the first question to the provider.
const signInTimeout = 10 * time.Second

// tryProvider asks the provider for its description, so that a wrong --oidc-issuer is in
// the log before a person cannot sign in. The manager does not depend on the answer.
func tryProvider(ctx context.Context, p *oidc.Provider, log *slog.Logger) error {
	if p == nil {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, signInTimeout)
	defer cancel()
	if err := p.Connect(asking); err != nil && ctx.Err() == nil {
		log.Warn("single sign-on does not work: the server of --oidc-issuer does not answer as a provider", "issuer", p.Issuer(), "err", err)
	}
	return nil
}
