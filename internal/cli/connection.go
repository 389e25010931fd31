package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/client"
)

// defaultManager is the URL of a manager with its default --listen.
const defaultManager = "http://127.0.0.1:7470"

// connection holds the flags with which commands reach the manager.
type connection struct {
	manager   string
	caFile    string
	tokenFile string
	context   string
}

// register adds the flags to a command and its subcommands.
func (c *connection) register(cmd *cobra.Command) *cobra.Command {
	c.registerManager(cmd)
	cmd.PersistentFlags().StringVar(&c.tokenFile, "token-file", "", "file with your token (default $DXPU_TOKEN)")
	cmd.PersistentFlags().StringVar(&c.context, "context", "", `name of a pool: see "dxpu context" (default $DXPU_CONTEXT or the current context)`)
	return cmd
}

// registerManager adds the flags that proxies have, too.
func (c *connection) registerManager(cmd *cobra.Command) {
	cmd.PersistentFlags().StringVar(&c.manager, "manager", "", "URL of the manager; several are separated by commas (default $DXPU_MANAGER or "+defaultManager+")")
	cmd.PersistentFlags().StringVar(&c.caFile, "ca-file", "", "PEM file of the authority that signed the manager's certificate")
}

// url returns the manager's URL, or several separated by commas, checked. It
// ignores the contexts.
func (c *connection) url() (string, error) {
	s := cmp.Or(c.manager, os.Getenv("DXPU_MANAGER"), defaultManager)
	if _, err := client.ParseManagers(s); err != nil {
		return "", usage(withHint(fmt.Errorf("--manager: %w", err), "write it like %s, several as URL,URL,URL", defaultManager))
	}
	return s, nil
}

// resolve returns the pool to call and the caller's credentials. A context's token
// is sent only to the context's manager.
func (c *connection) resolve() (*poolContext, error) {
	if c.manager != "" && c.context != "" {
		return nil, usage(withHint(errors.New("--manager and --context exclude each other"), "a context contains the URL of its manager"))
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

// pool returns the client of the PoolService.
func (c *connection) pool() (dxpuv1connect.PoolServiceClient, error) {
	t, err := c.resolve()
	if err != nil {
		return nil, err
	}
	cfg := client.Config{CAHash: t.CAHash}
	if cfg.Managers, err = client.ParseManagers(t.Manager); err != nil {
		return nil, err
	}
	if t.CAFile != "" {
		if cfg.CA, err = os.ReadFile(t.CAFile); err != nil {
			return nil, fmt.Errorf("--ca-file: %w", err)
		}
	}
	if cfg.Token, err = t.token(); err != nil {
		return nil, err
	}
	api, err := client.New(cfg)
	switch {
	case errors.Is(err, client.ErrCleartext):
		return nil, withHint(err, `write the URL with https; "dxpu manager --tls" serves it`)
	case err != nil:
		return nil, err
	}
	return api.Pool, nil
}

// token returns the caller's token, "" for none.
func (c *poolContext) token() (string, error) {
	if c.TokenFile == "" {
		return c.Token, nil
	}
	f, err := os.Open(c.TokenFile)
	if err != nil {
		return "", withHint(fmt.Errorf("--token-file: %w", err), `"dxpu token create" creates a token; a manager writes the first to admin-token in its --data-dir`)
	}
	defer func() { _ = f.Close() }()
	token, err := readToken(f)
	if err != nil {
		return "", fmt.Errorf("--token-file: %s: %w", c.TokenFile, err)
	}
	return token, nil
}

// readToken reads a token with any white space around it.
func readToken(r io.Reader) (string, error) {
	raw, err := io.ReadAll(io.LimitReader(r, 8<<10))
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(raw))
	if token == "" || !validToken(token) {
		return "", withHint(errors.New("the text is not a token"), `a token is one word, as "dxpu token create" prints it`)
	}
	return token, nil
}
