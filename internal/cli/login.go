package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/spf13/cobra"
	"golang.org/x/oauth2"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	pooloidc "github.com/dxpu-project/dxpu/internal/pool/oidc"
)

func newLoginCommand(conn *connection) *cobra.Command {
	o := &login{}
	cmd := &cobra.Command{
		Use: "login", Short: "Sign in at the pool's OpenID provider", Args: cobra.NoArgs,
		Long: `Sign in at the OpenID provider of the pool (single sign-on), and store the token that
the manager gives for it in the current context. Without a context the command makes
one. The token ends after some hours; "dxpu whoami" shows the role.

The command prints a URL to open in a browser on this machine. With --device the browser
may be on another one. Programs use tokens ("dxpu token create").`,
		Example: `  dxpu login
  dxpu login --device --manager https://m1:7470 --ca-file ca.crt`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd, conn) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.device, "device", false, "print a code to enter in a browser on any machine")
	f.BoolVar(&o.print, "print-token", false, "print the token, for the web page or $DXPU_TOKEN, and do not store it")
	positiveDurationVar(f, &o.timeout, "timeout", 5*time.Minute, "longest wait for the browser")
	return conn.register(cmd)
}

// login is one sign-in.
type login struct {
	device, print bool
	timeout       time.Duration
	show          func(url string) // shows the URL to open; nil: on standard error
}

func (o *login) run(cmd *cobra.Command, conn *connection) error {
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), o.timeout, errTimeout)
	defer cancel()
	api, err := conn.pool()
	if err != nil {
		return err
	}
	at, err := callOn(ctx, api, poolAPI.GetSignIn, &dxpuv1.GetSignInRequest{})
	if err != nil {
		return err
	}
	if at.Issuer == "" {
		return withHint(&refusedError{errors.New("the pool has no single sign-on")}, `"dxpu manager --oidc-issuer" sets it up; use a token meanwhile ("dxpu token create")`)
	}
	raw, err := o.signIn(ctx, cmd.ErrOrStderr(), at)
	switch {
	case err != nil && ctx.Err() != nil && cmd.Context().Err() == nil:
		return fmt.Errorf("%w: the sign-in was not complete within %s", errTimeout, o.timeout)
	case err != nil:
		return fmt.Errorf("sign in at %s: %w", at.Issuer, err)
	}
	res, err := callOn(ctx, api, poolAPI.SignIn, &dxpuv1.SignInRequest{IdToken: raw})
	if err != nil {
		return err
	}
	if o.print {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), res.Secret)
		return err
	}
	path, name, err := saveLogin(conn, res.Secret)
	if err != nil {
		return err
	}
	t := res.Token
	role := enumWord(t.Role)
	if t.Tenant != "" {
		role += " " + t.Tenant
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s as %s until %s; the token is in the context %s in %s\n", t.Description, role, date(t.ExpireTime), name, path)
	return err
}

// signIn returns the ID token of the person.
func (o *login) signIn(ctx context.Context, out io.Writer, at *dxpuv1.GetSignInResponse) (string, error) {
	// The manager names the issuer: it may be another one's.
	if err := pooloidc.CheckIssuer(at.Issuer); err != nil {
		return "", err
	}
	ctx = oidc.ClientContext(ctx, pooloidc.NewClient())
	provider, err := oidc.NewProvider(ctx, at.Issuer)
	if err != nil {
		return "", err
	}
	cfg := &oauth2.Config{ClientID: at.ClientId, Endpoint: provider.Endpoint(), Scopes: []string{oidc.ScopeOpenID, "profile", "email"}}
	nonce := ""
	var token *oauth2.Token
	if o.device {
		token, err = deviceFlow(ctx, out, cfg)
	} else {
		nonce = rand.Text()
		token, err = o.codeFlow(ctx, out, cfg, nonce)
	}
	if err != nil {
		return "", err
	}
	raw, ok := token.Extra("id_token").(string)
	if !ok {
		return "", errors.New("the provider sent no ID token: the client must have the scope openid")
	}
	id, err := provider.Verifier(&oidc.Config{ClientID: at.ClientId}).Verify(ctx, raw)
	if err != nil {
		return "", err
	}
	if id.Nonce != nonce {
		return "", errors.New("the answer is for another request (nonce)")
	}
	return raw, nil
}

func deviceFlow(ctx context.Context, out io.Writer, cfg *oauth2.Config) (*oauth2.Token, error) {
	if cfg.Endpoint.DeviceAuthURL == "" {
		return nil, errors.New("the provider has no device flow: leave --device out")
	}
	code, err := cfg.DeviceAuth(ctx)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "Open %s and enter the code %s\n", oneLine(cmp.Or(code.VerificationURIComplete, code.VerificationURI)), oneLine(code.UserCode))
	return cfg.DeviceAccessToken(ctx, code)
}

// codeFlow waits on a loopback address for the browser to return with a code, which it
// exchanges (RFC 8252, with PKCE).
func (o *login) codeFlow(ctx context.Context, out io.Writer, cfg *oauth2.Config, nonce string) (*oauth2.Token, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	cfg.RedirectURL = "http://" + l.Addr().String() + "/callback"
	state, verifier := rand.Text(), oauth2.GenerateVerifier()
	codes := make(chan string, 1)
	srv := &http.Server{ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 32 << 10, Handler: callback(state, codes)}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if srv.Shutdown(stop) != nil {
			_ = srv.Close()
		}
		<-done
	}()
	show := o.show
	if show == nil {
		show = func(url string) { fmt.Fprintf(out, "Open this URL in a browser on this machine:\n%s\n", url) }
	}
	show(cfg.AuthCodeURL(state, oidc.Nonce(nonce), oauth2.S256ChallengeOption(verifier)))
	select {
	case code := <-codes:
		if why, failed := strings.CutPrefix(code, "\x00"); failed {
			return nil, errors.New(oneLine(why))
		}
		return cfg.Exchange(ctx, code, oauth2.VerifierOption(verifier))
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// callback serves the browser that returns from the provider. It sends the code of the
// first request that has the state, or an error after a zero byte.
func callback(state string, codes chan<- string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if r.URL.Path != "/callback" || subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(state)) != 1 {
			http.Error(w, "This is not the answer to \"dxpu login\".", http.StatusBadRequest)
			return
		}
		code := q.Get("code")
		if code == "" {
			code = "\x00" + cmp.Or(q.Get("error_description"), q.Get("error"), "the provider sent no code")
		}
		select {
		case codes <- code:
			_, _ = io.WriteString(w, "Signed in: return to the terminal.\n")
		default: // a second request with the state
			http.Error(w, "This answer was used before.", http.StatusBadRequest)
		}
	})
}

// saveLogin stores a token in the context that the command used, or in a new one.
func saveLogin(conn *connection, token string) (path, name string, err error) {
	t, err := conn.resolve()
	if err != nil {
		return "", "", err
	}
	all, path, err := loadContexts()
	if err != nil {
		return "", "", err
	}
	c := all.find(t.Name)
	if c == nil {
		c = all.find("login")
	}
	if c == nil {
		all.Contexts = append(all.Contexts, poolContext{Name: "login"})
		c = &all.Contexts[len(all.Contexts)-1]
	}
	if t.Name == "" {
		c.Manager, c.CAHash = t.Manager, t.CAHash
		if c.CAFile, err = absolute(t.CAFile); err != nil {
			return "", "", err
		}
	}
	c.Token, c.TokenFile = token, ""
	if all.Current == "" {
		all.Current = c.Name
	}
	return path, c.Name, all.save(path)
}
