package cli

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

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

	stderr func() io.Writer // of a command that has the flags
	says   *notices         // of all calls of the command; nil before the first
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
	c.stderr = cmd.ErrOrStderr
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
		if t.Token = strings.TrimSpace(os.Getenv("DXPU_TOKEN")); !validToken(t.Token) {
			return nil, fmt.Errorf("DXPU_TOKEN: %w", errNoToken)
		}
	}
	return t, nil
}

// pool returns the client of the PoolService.
func (c *connection) pool() (dxpuv1connect.PoolServiceClient, error) {
	t, err := c.resolve()
	if err != nil {
		return nil, err
	}
	if c.says == nil {
		c.says = &notices{out: c.stderr()}
	}
	cfg := client.Config{CAHash: t.CAHash, Waiting: c.says.told}
	if cfg.Managers, err = client.ParseManagers(t.Manager); err != nil {
		return nil, err
	}
	if cfg.CA, err = readAuthority(t.CAFile); err != nil {
		return nil, err
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

// readFlag reads the file that a flag names. Without a name it returns nil.
func readFlag(flag, name string) ([]byte, error) {
	if name == "" {
		return nil, nil
	}
	raw, err := readAtMost(name, maxFlagFile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return raw, nil
}

// maxFlagFile bounds the file that a flag names, in bytes: certificates, and small tables.
const maxFlagFile = 1 << 20

// readAtMost reads a file, and refuses one that is longer than a limit in bytes.
func readAtMost(path string, limit int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err == nil && len(raw) > limit {
		err = fmt.Errorf("%s has more than %d bytes", path, limit)
	}
	return raw, err
}

// readAuthority reads the file with the certificate of the manager's authority. Without a
// name it returns nil.
func readAuthority(name string) ([]byte, error) {
	raw, err := readFlag("--ca-file", name)
	if err == nil && name != "" && !x509.NewCertPool().AppendCertsFromPEM(raw) {
		err = withHint(fmt.Errorf("--ca-file: %s has no certificate", name), "a manager writes the certificate of its authority to ca.crt in its --data-dir")
	}
	return raw, err
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
	var read *fs.PathError // names the file
	if errors.As(err, &read) {
		err = read.Err
	}
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
		return "", errNoToken
	}
	return token, nil
}

// errNoToken is about a text in the place of a token.
var errNoToken = withHint(errors.New("the text is not a token"), `a token is one word, as "dxpu token create" prints it`)

// poolAPI is the manager's API for people and programs.
type poolAPI = dxpuv1connect.PoolServiceClient

// method is a method of the API, such as poolAPI.GetPool.
type method[Req, Res any] = func(poolAPI, context.Context, *connect.Request[Req]) (*connect.Response[Res], error)

// call connects to the manager and calls a method.
func call[Req, Res any](ctx context.Context, conn *connection, m method[Req, Res], req *Req) (*Res, error) {
	api, err := conn.pool()
	if err != nil {
		return nil, err
	}
	return callOn(ctx, api, m, req)
}

// callOn calls a method of an open connection.
func callOn[Req, Res any](ctx context.Context, api poolAPI, m method[Req, Res], req *Req) (*Res, error) {
	res, err := m(api, ctx, connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// pagedRequest and pagedResponse are the messages of a list method: page_token in a
// request continues after next_page_token of the last response.
type (
	pagedRequest[Req any] interface {
		*Req
		proto.Message
		GetPageToken() string
	}
	pagedResponse[Res any] interface {
		*Res
		proto.Message
		GetNextPageToken() string
	}
)

// callPages calls a list method for each page of the result, until show returns
// an error.
func callPages[Req, Res any, PReq pagedRequest[Req], PRes pagedResponse[Res]](
	ctx context.Context, api poolAPI, m method[Req, Res], req PReq, show func(*Res) error,
) error {
	for {
		res, err := callOn(ctx, api, m, (*Req)(req))
		if err != nil {
			return err
		}
		if err := show(res); err != nil {
			return err
		}
		next := PRes(res).GetNextPageToken()
		if next == "" {
			return nil
		}
		setField(req, "page_token", next)
	}
}

// callAll calls a list method for all pages and returns them as one response.
func callAll[Req, Res any, PReq pagedRequest[Req], PRes pagedResponse[Res]](
	ctx context.Context, api poolAPI, m method[Req, Res], req PReq,
) (PRes, error) {
	all := PRes(new(Res))
	err := callPages[Req, Res, PReq, PRes](ctx, api, m, req, func(page *Res) error {
		proto.Merge(all, PRes(page)) // appends the entries
		return nil
	})
	setField(all, "next_page_token", "")
	return all, err
}

// setField sets a field of type string.
func setField(m proto.Message, name protoreflect.Name, value string) {
	r := m.ProtoReflect()
	r.Set(r.Descriptor().Fields().ByName(name), protoreflect.ValueOfString(value))
}

// itself is the object function of a method whose response has no other message.
func itself[M any](m M) M { return m }

// getCommand completes a command that calls a method and prints the object that the
// method returns. The words of the usage line, such as GPU, are the arguments.
func getCommand[Req, Res any, M proto.Message](conn *connection, cmd *cobra.Command,
	m method[Req, Res], request func(args []string) *Req, object func(*Res) M, text func(io.Writer, M),
) *cobra.Command {
	cmd.Args = cobra.ExactArgs(strings.Count(cmd.Use, " "))
	return valueCommand(cmd, func(cmd *cobra.Command, args []string) (result M, err error) {
		res, err := call(cmd.Context(), conn, m, request(args))
		if err != nil {
			return result, err
		}
		return object(res), nil
	}, text)
}

// deleteCommand completes a command that deletes objects by their IDs. It tries all of
// them, and returns the errors.
func deleteCommand[Req, Res any](conn *connection, cmd *cobra.Command, m method[Req, Res], request func(id string) *Req) *cobra.Command {
	cmd.Args = cobra.MinimumNArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		api, err := conn.pool()
		if err != nil {
			return err
		}
		return each(args, func(id string) error {
			if _, err := callOn(cmd.Context(), api, m, request(id)); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is deleted\n", tokenID(id)) // never a secret
			return err
		})
	}
	return cmd
}

// each calls do for each name, also after errors, and returns the first error, which
// decides on the exit code, with the others in its text. An empty name, as of a variable that
// is not set, is refused before the first call.
func each(names []string, do func(name string) error) error {
	if i := slices.Index(names, ""); i >= 0 {
		return usagef("name %d of %d is empty: nothing was done", i+1, len(names))
	}
	var errs []error
	for _, name := range names {
		if err := do(name); err != nil {
			errs = append(errs, err)
		}
	}
	return severalErrors(errs)
}
