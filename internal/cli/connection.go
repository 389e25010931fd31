package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/client"
)

// defaultManager is where a manager listens when it is not told otherwise.
const defaultManager = "http://127.0.0.1:7470"

// connection is how commands reach the manager.
type connection struct {
	manager   string
	caFile    string
	tokenFile string
	context   string
}

// register adds the flags to a command and all below it.
func (c *connection) register(cmd *cobra.Command) *cobra.Command {
	c.registerManager(cmd)
	cmd.PersistentFlags().StringVar(&c.tokenFile, "token-file", "", "file of the token that says who you are (default $DXPU_TOKEN)")
	cmd.PersistentFlags().StringVar(&c.context, "context", "", `name of a pool: see "dxpu context" (default $DXPU_CONTEXT or the current one)`)
	return cmd
}

// registerManager adds the flags of who is no person: a node.
func (c *connection) registerManager(cmd *cobra.Command) {
	cmd.PersistentFlags().StringVar(&c.manager, "manager", "", "URL of the manager, or of several, separated by commas (default $DXPU_MANAGER or "+defaultManager+")")
	cmd.PersistentFlags().StringVar(&c.caFile, "ca-file", "", "PEM file of the authority that signed the manager's certificate")
}

// electionPatience is how long a command waits for several managers to agree on a leader.
const electionPatience = 10 * time.Second

// url returns the manager's URL, or several as package endpoint reads them,
// checked, without a look at the contexts.
func (c *connection) url() (string, error) {
	s := cmp.Or(c.manager, os.Getenv("DXPU_MANAGER"), defaultManager)
	if _, err := client.Parse(s); err != nil {
		return "", withHint(err, "write it like %s, several as URL,URL,URL", defaultManager)
	}
	return s, nil
}

// resolve finds out which pool is meant and as whom to call it. A context's
// token goes nowhere but to the context's manager.
func (c *connection) resolve() (*poolContext, error) {
	if c.manager != "" && c.context != "" {
		return nil, &usageError{withHint(errors.New("--manager and --context exclude each other"), "a context says where the manager is")}
	}
	t := &poolContext{}
	name := cmp.Or(c.context, os.Getenv("DXPU_CONTEXT"))
	if c.manager == "" && (name != "" || os.Getenv("DXPU_MANAGER") == "") {
		all, path, err := loadContexts()
		if err != nil {
			return nil, err
		}
		if name = cmp.Or(name, all.Current); name != "" {
			found, err := all.named(name)
			if err != nil {
				return nil, err
			}
			*t = *found
			t.CAFile, t.TokenFile = t.file(path, t.CAFile), t.file(path, t.TokenFile)
		}
	}
	if t.Manager == "" {
		var err error
		if t.Manager, err = c.url(); err != nil {
			return nil, err
		}
	}
	if c.caFile != "" {
		t.CAFile, t.CAHash = c.caFile, ""
	}
	switch {
	case c.tokenFile != "":
		t.TokenFile, t.Token = c.tokenFile, ""
	case t.TokenFile == "" && t.Token == "":
		t.Token = strings.TrimSpace(os.Getenv("DXPU_TOKEN"))
	}
	return t, nil
}

// transport trusts the authority of the context.
func (c *poolContext) transport() (http.RoundTripper, error) {
	switch {
	case c.CAHash != "":
		return &http.Transport{DialTLSContext: client.PinnedDialer(c.CAHash, &tls.Config{MinVersion: tls.VersionTLS13})}, nil
	case c.CAFile == "":
		return http.DefaultTransport, nil
	}
	pem, err := os.ReadFile(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("--ca-file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("--ca-file: no certificate in it")
	}
	return &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}, ForceAttemptHTTP2: true,
	}, nil
}

// pool returns the client of the PoolService.
func (c *connection) pool() (dxpuv1connect.PoolServiceClient, error) {
	t, err := c.resolve()
	if err != nil {
		return nil, err
	}
	base, err := t.transport()
	if err != nil {
		return nil, err
	}
	token, err := t.token()
	if err != nil {
		return nil, err
	}
	managers, err := client.Parse(t.Manager)
	if err != nil {
		return nil, err
	}
	for _, m := range managers {
		if token != "" && m.Scheme == "http" && !isLoopback(net.JoinHostPort(m.Hostname(), "0")) {
			return nil, withHint(fmt.Errorf("%s: your token would cross the network in the clear", m), "write the URL with https: \"dxpu manager --tls\" serves it")
		}
	}
	hc := &http.Client{Transport: client.New(managers, base, electionPatience)}
	return dxpuv1connect.NewPoolServiceClient(hc, managers[0].String(), connect.WithInterceptors(bearer(token))), nil
}

// token returns the caller's token, "" for none.
func (c *poolContext) token() (string, error) {
	if c.TokenFile == "" {
		return c.Token, nil
	}
	f, err := os.Open(c.TokenFile)
	if err != nil {
		return "", withHint(fmt.Errorf("--token-file: %w", err), `"dxpu token create" makes a token; a manager writes the first to admin-token in its --data-dir`)
	}
	defer func() { _ = f.Close() }()
	token, err := readToken(f)
	if err != nil {
		return "", fmt.Errorf("--token-file: %s: %w", c.TokenFile, err)
	}
	return token, nil
}

// readToken reads a token and what white space there is around it.
func readToken(r io.Reader) (string, error) {
	raw, err := io.ReadAll(io.LimitReader(r, 8<<10))
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(raw))
	if token == "" || !validToken(token) {
		return "", withHint(errors.New("that is no token"), `it is one word, as "dxpu token create" prints it`)
	}
	return token, nil
}

// bearer is an interceptor that says whose the calls are.
type bearer string

func (b bearer) authorize(h http.Header) {
	if b != "" {
		h.Set("Authorization", "Bearer "+string(b))
	}
}

// WrapUnary implements connect.Interceptor.
func (b bearer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		b.authorize(req.Header())
		return next(ctx, req)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (b bearer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		b.authorize(conn.RequestHeader())
		return conn
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (b bearer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
