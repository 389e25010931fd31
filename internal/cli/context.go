package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"

	"github.com/dxpu-project/dxpu/client"
	"github.com/dxpu-project/dxpu/internal/atomicfile"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

func newContextCommand() *cobra.Command {
	return group("context", "Manage named pools and your credentials for them",
		`Manage contexts. A context stores the address of a pool and your credentials for it
under a short name. The file is $XDG_CONFIG_HOME/dxpu/config.yaml
(~/.config/dxpu/config.yaml), or the one that $DXPU_CONFIG names; only you can read
it.

A command uses the first of these that is set: --manager, --ca-file and
--token-file; the context of --context or $DXPU_CONTEXT; $DXPU_MANAGER and
$DXPU_TOKEN; the current context; a manager on this machine. The token of a context
is sent only to that context's manager, never to one given in another way.`,
		`  dxpu context set prod --manager https://m1:7470 --ca-hash sha256:... --token-file ~/prod.token --use
  dxpu context list
  dxpu get gpus --context prod`,
		newContextListCommand(), newContextShowCommand(), newContextSetCommand(), newContextUseCommand(), newContextDeleteCommand())
}

// contextView is the output form of a context, without its token.
type contextView struct {
	Name      string `json:"name"`
	Current   bool   `json:"current"`
	Manager   string `json:"manager"`
	CAFile    string `json:"ca_file,omitempty"`
	CAHash    string `json:"ca_hash,omitempty"`
	TokenFile string `json:"token_file,omitempty"`
	Token     bool   `json:"token"` // whether the file contains one
}

// contextViews are the contexts in the order of the file.
type contextViews []contextView

func (all contextViews) names() (out []string) {
	for _, c := range all {
		out = append(out, c.Name)
	}
	return out
}

func (all *contexts) view(c *poolContext) contextView {
	return contextView{c.Name, c.Name == all.Current, c.Manager, c.CAFile, c.CAHash, c.TokenFile, c.Token != ""}
}

func newContextListCommand() *cobra.Command {
	return valueCommand(&cobra.Command{
		Use: "list", Short: "List the contexts", Args: cobra.NoArgs,
		Long:    "List the contexts, without their tokens. A star marks the current one.",
		Example: "  dxpu context list",
	}, func(*cobra.Command, []string) (contextViews, error) {
		all, _, err := loadContexts()
		if err != nil {
			return nil, err
		}
		out := contextViews{}
		for i := range all.Contexts {
			out = append(out, all.view(&all.Contexts[i]))
		}
		return out, nil
	}, func(w io.Writer, views contextViews) {
		t := newTable(w, "CURRENT", "NAME", "MANAGER", "TOKEN")
		for _, v := range views {
			star, token := "", v.TokenFile
			if v.Current {
				star = "*"
			}
			if v.Token {
				token = "in the file"
			}
			t.row(star, v.Name, v.Manager, token)
		}
		t.flush()
	})
}

func newContextShowCommand() *cobra.Command {
	var path string
	return valueCommand(&cobra.Command{
		Use: "show [CONTEXT]", Short: "Show a context", Args: cobra.MaximumNArgs(1),
		Long:    "Show a context, without its token. The default is the current context.",
		Example: "  dxpu context show prod",
	}, func(_ *cobra.Command, args []string) (v contextView, err error) {
		var all *contexts
		if all, path, err = loadContexts(); err != nil {
			return v, err
		}
		name := all.Current
		if len(args) > 0 {
			name = args[0]
		}
		if name == "" {
			return v, withHint(errors.New("there is no current context"), `"dxpu context use" selects one`)
		}
		c, err := all.named(name)
		if err != nil {
			return v, err
		}
		return all.view(c), nil
	}, func(w io.Writer, v contextView) {
		token := v.TokenFile
		if v.Token {
			token = "in " + path
		}
		t := newTable(w, "name", v.Name)
		t.row("manager", v.Manager)
		t.row("ca-file", v.CAFile)
		t.row("ca-hash", v.CAHash)
		t.row("token", token)
		t.flush()
	})
}

// named returns a context, or an error if it does not exist.
func (all *contexts) named(name string) (*poolContext, error) {
	if c := all.find(name); c != nil {
		return c, nil
	}
	return nil, withHint(fmt.Errorf("there is no context %q", name), `"dxpu context list" lists the contexts, "dxpu context set" creates one`)
}

func newContextSetCommand() *cobra.Command {
	var use, tokenStdin bool
	var c poolContext
	cmd := &cobra.Command{
		Use: "set CONTEXT", Short: "Create or change a context", Args: cobra.ExactArgs(1),
		Long: `Create a context, or change the given properties of an existing one. --token-file
names a file, which every command reads. --token-stdin reads the token from standard
input and stores it in the contexts' file. A token is never part of the command line,
which other users can see.`,
		Example: `  dxpu context set prod --manager https://m1:7470,https://m2:7470 --ca-file ca.crt --token-file prod.token
  dxpu token create --role operator | dxpu context set prod --token-stdin`,
		RunE: func(cmd *cobra.Command, args []string) error {
			all, path, err := loadContexts()
			if err != nil {
				return err
			}
			old := all.find(args[0])
			if old == nil {
				all.Contexts = append(all.Contexts, poolContext{Name: args[0]})
				old = &all.Contexts[len(all.Contexts)-1]
			}
			if tokenStdin {
				if c.Token, err = readToken(cmd.InOrStdin()); err != nil {
					return err
				}
			}
			if err := old.merge(cmd, &c); err != nil {
				return err
			}
			if err := old.check(); err != nil {
				return usage(contextError(err))
			}
			if err := c.readable(); err != nil {
				return err
			}
			if use || len(all.Contexts) == 1 {
				all.Current = old.Name
			}
			if err := all.save(path); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "saved the context %s in %s\n", old.Name, path)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Manager, "manager", "", "URL of the manager; several are separated by commas")
	f.StringVar(&c.CAFile, "ca-file", "", "PEM file of the authority that signed the manager's certificate")
	f.StringVar(&c.CAHash, "ca-hash", "", "hash of that authority, as the manager prints it, instead of its file")
	f.StringVar(&c.TokenFile, "token-file", "", "file with your token")
	f.BoolVar(&tokenStdin, "token-stdin", false, "read the token from standard input and store it")
	f.BoolVar(&use, "use", false, "make it the current context; the first context always is")
	cmd.MarkFlagsMutuallyExclusive("ca-file", "ca-hash")
	cmd.MarkFlagsMutuallyExclusive("token-file", "token-stdin")
	return cmd
}

// contextError names the flags in an error of check, which names the keys of the file.
func contextError(err error) error {
	text, hint := err.Error(), ""
	var h *hintedError
	if errors.As(err, &h) {
		hint = h.hint
	}
	if name, ok := strings.CutPrefix(text, "name: "); ok {
		text = name // the argument
	} else {
		text = "--" + strings.Replace(text, "ca-file, ca-hash", "ca-file, --ca-hash", 1)
	}
	if hint == "" {
		return errors.New(text)
	}
	return withHint(errors.New(text), "%s", hint)
}

// readable returns an error unless the files of a context can be read: otherwise each
// command that uses it fails.
func (c *poolContext) readable() error {
	if _, err := readAuthority(c.CAFile); err != nil {
		return err
	}
	if c.TokenFile == "" {
		return nil
	}
	_, err := c.token()
	return err
}

// merge sets the properties that were given on the command line. A new authority or
// token replaces the old one, whatever its form.
func (c *poolContext) merge(cmd *cobra.Command, from *poolContext) error {
	given := cmd.Flags().Changed
	if given("manager") {
		c.Manager = from.Manager
	}
	var err error
	if given("ca-file") || given("ca-hash") {
		c.CAHash = from.CAHash
		if c.CAFile, err = absolute(from.CAFile); err != nil {
			return err
		}
	}
	if given("token-file") || given("token-stdin") {
		c.Token = from.Token
		c.TokenFile, err = absolute(from.TokenFile)
	}
	return err
}

func absolute(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	return filepath.Abs(path)
}

func newContextUseCommand() *cobra.Command {
	return contextChange(&cobra.Command{
		Use: "use CONTEXT", Short: "Select the current context",
		Long:    "Select the context that commands use by default.",
		Example: "  dxpu context use prod",
	}, "the current context", func(all *contexts, name string) { all.Current = name })
}

func newContextDeleteCommand() *cobra.Command {
	return contextChange(&cobra.Command{
		Use: "delete CONTEXT", Short: "Delete a context",
		Long:    "Delete a context. Its token stays valid; \"dxpu token delete\" revokes it.",
		Example: "  dxpu context delete prod",
	}, "deleted", func(all *contexts, name string) {
		all.Contexts = slices.DeleteFunc(all.Contexts, func(c poolContext) bool { return c.Name == name })
		if all.Current == name {
			all.Current = ""
		}
	})
}

// contextChange completes a command that changes an existing context.
func contextChange(cmd *cobra.Command, done string, change func(all *contexts, name string)) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		all, path, err := loadContexts()
		if err != nil {
			return err
		}
		if _, err := all.named(args[0]); err != nil {
			return err
		}
		change(all, args[0])
		if err := all.save(path); err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is %s\n", args[0], done)
		return err
	}
	return cmd
}

const (
	contextsVersion = 1
	// maxContexts bounds the size of the file, in bytes: some hundred contexts.
	maxContexts = 64 << 10
	// maxYAMLError bounds the text of a parser's error, in bytes.
	maxYAMLError = 500
)

// contexts is the file of the contexts.
type contexts struct {
	Version int `yaml:"version"`
	// Current is the default context; empty: none.
	Current  string        `yaml:"current,omitempty"`
	Contexts []poolContext `yaml:"contexts"`
}

// poolContext is a pool and the user's credentials for it. The paths of its files may
// be relative to the directory of the contexts' file.
type poolContext struct {
	Name    string `yaml:"name"`
	Manager string `yaml:"manager"`
	// CAFile or CAHash identify the authority of the manager. Both empty: an authority
	// that the system trusts.
	CAFile string `yaml:"ca-file,omitempty"`
	CAHash string `yaml:"ca-hash,omitempty"`
	// TokenFile or Token identify the caller. Both empty: $DXPU_TOKEN, or no token.
	TokenFile string `yaml:"token-file,omitempty"`
	Token     string `yaml:"token,omitempty"`
}

var contextName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$`)

// contextsPath returns the path of the file, which may not exist.
func contextsPath() (string, error) {
	if p := os.Getenv("DXPU_CONFIG"); p != "" {
		return p, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", withHint(fmt.Errorf("contexts: %w", err), "set HOME, or set DXPU_CONFIG to the path of the file")
	}
	return filepath.Join(dir, "dxpu", "config.yaml"), nil
}

// parseContexts parses the file of the contexts. Its errors name the field and never
// quote a token.
func parseContexts(raw []byte) (*contexts, error) {
	if len(raw) > maxContexts {
		return nil, fmt.Errorf("the file is longer than %d bytes", maxContexts)
	}
	all := &contexts{}
	l, err := yaml.NewLoader(bytes.NewReader(raw), yaml.WithKnownFields(true), yaml.WithUniqueKeys(true))
	if err != nil {
		return nil, err
	}
	switch err := l.Load(all); {
	case errors.Is(err, io.EOF):
		return nil, withHint(errors.New("the file is empty"), "remove it, or add the line: version: %d", contextsVersion)
	case err != nil:
		return nil, yamlError(err)
	}
	var more any
	if err := l.Load(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("the file has more than one document")
	}
	return all, all.check()
}

var someToken = regexp.MustCompile(regexp.QuoteMeta(auth.TokenPrefix) + `\S*`)

func withoutTokens(s string) string { return someToken.ReplaceAllString(s, auth.TokenPrefix+"...") }

func (all *contexts) check() error {
	if all.Version != contextsVersion {
		return withHint(fmt.Errorf("version: %d is not %d", all.Version, contextsVersion), "another version of dxpu wrote this file")
	}
	for i := range all.Contexts {
		c := &all.Contexts[i]
		if err := c.check(); err != nil {
			return fmt.Errorf("contexts[%d].%w", i, err)
		}
		if slices.IndexFunc(all.Contexts, func(o poolContext) bool { return o.Name == c.Name }) != i {
			return fmt.Errorf("contexts[%d].name: %q appears twice", i, c.Name)
		}
	}
	if all.Current != "" && all.find(all.Current) == nil {
		return withHint(fmt.Errorf("current: there is no context %q", all.Current), `"dxpu context list" lists the contexts`)
	}
	return nil
}

func (c *poolContext) check() error {
	switch {
	case !contextName.MatchString(c.Name):
		return withHint(fmt.Errorf("name: %.80q is not a valid name", c.Name), "a name has 1 to 63 letters, digits, '.', '_', '@' and '-'")
	case c.Manager == "":
		return withHint(errors.New("manager: the URL is missing"), "write it like %s", defaultManager)
	case c.CAFile != "" && c.CAHash != "":
		return errors.New("ca-hash: excludes ca-file")
	case c.TokenFile != "" && c.Token != "":
		return errors.New("token: excludes token-file")
	case c.Token != "" && !validToken(c.Token):
		return withHint(errors.New("token: the text is not a token"), `"dxpu token create" prints a token`)
	}
	if _, err := client.ParseManagers(c.Manager); err != nil {
		return withHint(fmt.Errorf("manager: %w", err), "write it like %s, several as URL,URL,URL", defaultManager)
	}
	if (c.CAFile != "" || c.CAHash != "") && strings.HasPrefix(c.Manager, "http:") {
		return withHint(errors.New("ca-file, ca-hash: the URL of the manager is http"), "write it with https")
	}
	if c.CAHash != "" {
		if err := auth.CheckHash(c.CAHash); err != nil {
			return fmt.Errorf("ca-hash: %w", err)
		}
	}
	return nil
}

// validToken reports whether a text can be a token. It accepts kinds of tokens that
// this version does not know.
func validToken(s string) bool {
	return len(s) <= 4096 && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

func (all *contexts) find(name string) *poolContext {
	if i := slices.IndexFunc(all.Contexts, func(c poolContext) bool { return c.Name == name }); i >= 0 {
		return &all.Contexts[i]
	}
	return nil
}

// loadContexts reads the file. A file that does not exist has no contexts.
func loadContexts() (all *contexts, path string, err error) {
	if path, err = contextsPath(); err != nil {
		return nil, "", err
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &contexts{Version: contextsVersion}, path, nil
	}
	if err != nil {
		return nil, path, fmt.Errorf("contexts: %w", err)
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, maxContexts+1))
	if err != nil {
		return nil, path, fmt.Errorf("contexts: %w", err)
	}
	if all, err = parseContexts(raw); err != nil {
		return nil, path, fmt.Errorf("%s: %w", path, err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, path, fmt.Errorf("contexts: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 && slices.ContainsFunc(all.Contexts, func(c poolContext) bool { return c.Token != "" }) {
		return nil, path, withHint(fmt.Errorf("%s: other users can read the tokens in it", path), "chmod 600 %s", path)
	}
	return all, path, nil
}

// save replaces the file atomically. Only its owner can read it.
func (all *contexts) save(path string) error {
	if err := all.check(); err != nil {
		return err
	}
	raw, err := yaml.Dump(all)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		err = atomicfile.Write(path, raw)
	}
	if err != nil {
		return fmt.Errorf("contexts: %w", err)
	}
	return nil
}

// file resolves a path in the file of the contexts.
func (c *poolContext) file(contextsPath, name string) string {
	if name == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(contextsPath), name)
}
