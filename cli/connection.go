package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/endpoint"
)

// defaultManager is where a manager listens when it is not told otherwise.
const defaultManager = "http://127.0.0.1:7470"

// connection is how commands reach the manager.
type connection struct {
	manager   string
	caFile    string
	tokenFile string
}

// register adds the flags to a command and all below it.
func (c *connection) register(cmd *cobra.Command) *cobra.Command {
	cmd.PersistentFlags().StringVar(&c.manager, "manager", "", "URL of the manager, or of several, separated by commas (default $DXPU_MANAGER or "+defaultManager+")")
	cmd.PersistentFlags().StringVar(&c.caFile, "ca-file", "", "PEM file of the authority that signed the manager's certificate")
	cmd.PersistentFlags().StringVar(&c.tokenFile, "token-file", "", "file of the token that says who you are (default $DXPU_TOKEN)")
	return cmd
}

// electionPatience is how long a command waits for several managers to agree on a leader.
const electionPatience = 10 * time.Second

// url returns the manager's URL, or several as package endpoint reads them, checked.
func (c *connection) url() (string, error) {
	s := c.manager
	if s == "" {
		s = os.Getenv("DXPU_MANAGER")
	}
	if s == "" {
		s = defaultManager
	}
	if _, err := endpoint.Parse(s); err != nil {
		return "", withHint(err, "write it like %s, several as URL,URL,URL", defaultManager)
	}
	return s, nil
}

// httpClient returns a client that trusts the authority in caFile.
func (c *connection) httpClient() (*http.Client, error) {
	if c.caFile == "" {
		return http.DefaultClient, nil
	}
	pem, err := os.ReadFile(c.caFile)
	if err != nil {
		return nil, fmt.Errorf("--ca-file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("--ca-file: no certificate in it")
	}
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}, ForceAttemptHTTP2: true,
	}}, nil
}

// pool returns the client of the PoolService.
func (c *connection) pool() (dxpuv1connect.PoolServiceClient, error) {
	u, err := c.url()
	if err != nil {
		return nil, err
	}
	hc, err := c.httpClient()
	if err != nil {
		return nil, err
	}
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	managers, err := endpoint.Parse(u)
	if err != nil {
		return nil, err
	}
	hc = &http.Client{Transport: endpoint.New(managers, cmp.Or(hc.Transport, http.DefaultTransport), electionPatience)}
	return dxpuv1connect.NewPoolServiceClient(hc, managers[0].String(), connect.WithInterceptors(bearer(token))), nil
}

// token returns the caller's token, "" for none.
func (c *connection) token() (string, error) {
	if c.tokenFile == "" {
		return strings.TrimSpace(os.Getenv("DXPU_TOKEN")), nil
	}
	raw, err := os.ReadFile(c.tokenFile)
	if err != nil {
		return "", withHint(fmt.Errorf("--token-file: %w", err), `"dxpu token create" makes a token; a manager writes the first to admin-token in its --data-dir`)
	}
	return strings.TrimSpace(string(raw)), nil
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
