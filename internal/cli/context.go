package cli

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
)

func newContextCommand() *cobra.Command {
	return group("context", "Keep the addresses of pools, and who you are there",
		`Keep the addresses of pools and who you are there under short names, in
$XDG_CONFIG_HOME/dxpu/config.yaml (~/.config/dxpu/config.yaml) or the file that
$DXPU_CONFIG names. Only you can read it.

What a command uses, the first that there is: --manager, --ca-file and
--token-file; the context of --context or $DXPU_CONTEXT; $DXPU_MANAGER and
$DXPU_TOKEN; the current context; a manager on this machine. Who gives the
manager's address otherwise than by a context does not get the context's token:
it is for that pool.`,
		`  dxpu context set prod --manager https://m1:7470 --ca-hash sha256:... --token-file ~/prod.token --use
  dxpu context list
  dxpu get gpus --context prod`,
		newContextListCommand(), newContextShowCommand(), newContextSetCommand(), newContextUseCommand(), newContextDeleteCommand())
}

// contextView is a context as it is shown: without its token.
type contextView struct {
	Name      string `json:"name"`
	Current   bool   `json:"current"`
	Manager   string `json:"manager"`
	CAFile    string `json:"ca_file,omitempty"`
	CAHash    string `json:"ca_hash,omitempty"`
	TokenFile string `json:"token_file,omitempty"`
	Token     bool   `json:"token"` // there is one in the file
}

func (all *contexts) view(c *poolContext) contextView {
	return contextView{c.Name, c.Name == all.Current, c.Manager, c.CAFile, c.CAHash, c.TokenFile, c.Token != ""}
}

func newContextListCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list", Short: "List the contexts", Args: cobra.NoArgs,
		Long:    "List the contexts, without their tokens. The current one has a star.",
		Example: "  dxpu context list",
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, _, err := loadContexts()
			if err != nil {
				return err
			}
			if asJSON {
				out := []contextView{}
				for i := range all.Contexts {
					out = append(out, all.view(&all.Contexts[i]))
				}
				return writeJSON(cmd.OutOrStdout(), out)
			}
			t := newTable(cmd.OutOrStdout(), "CURRENT", "NAME", "MANAGER", "TOKEN")
			for i := range all.Contexts {
				c := &all.Contexts[i]
				star, token := "", c.TokenFile
				if c.Name == all.Current {
					star = "*"
				}
				if c.Token != "" {
					token = "in the file"
				}
				t.row(star, c.Name, c.Manager, token)
			}
			return t.flush()
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func newContextShowCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "show [CONTEXT]", Short: "Show a context", Args: cobra.MaximumNArgs(1),
		Long:    "Show a context, without its token; the current one where none is named.",
		Example: "  dxpu context show prod",
		RunE: func(cmd *cobra.Command, args []string) error {
			all, path, err := loadContexts()
			if err != nil {
				return err
			}
			name := all.Current
			if len(args) > 0 {
				name = args[0]
			}
			if name == "" {
				return withHint(errors.New("no context is current"), `"dxpu context use" makes one so`)
			}
			c, err := all.named(name)
			if err != nil {
				return err
			}
			v := all.view(c)
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), v)
			}
			token := v.TokenFile
			if v.Token {
				token = "in " + path
			}
			t := newTable(cmd.OutOrStdout(), "name", v.Name)
			t.row("manager", v.Manager)
			t.row("ca-file", v.CAFile)
			t.row("ca-hash", v.CAHash)
			t.row("token", token)
			return t.flush()
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// named returns a context that must exist.
func (all *contexts) named(name string) (*poolContext, error) {
	if c := all.find(name); c != nil {
		return c, nil
	}
	return nil, withHint(fmt.Errorf("there is no context %q", name), `"dxpu context list" shows what there is, "dxpu context set" makes one`)
}

func newContextSetCommand() *cobra.Command {
	var use, tokenStdin bool
	var c poolContext
	cmd := &cobra.Command{
		Use: "set CONTEXT", Short: "Make or change a context", Args: cobra.ExactArgs(1),
		Long: `Make a context, or change what is given of one that exists. A token comes from a
file, which is read with each command, or from the standard input, and is then
kept in the file of the contexts: a command line is seen by others.`,
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
				return fmt.Errorf("--%w", err)
			}
			if use || len(all.Contexts) == 1 {
				all.Current = old.Name
			}
			if err := all.save(path); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "The context %s is in %s\n", old.Name, path)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Manager, "manager", "", "URL of the manager, or of several, separated by commas")
	f.StringVar(&c.CAFile, "ca-file", "", "PEM file of the authority that signed the manager's certificate")
	f.StringVar(&c.CAHash, "ca-hash", "", "hash of that authority, as the manager prints it, instead of its file")
	f.StringVar(&c.TokenFile, "token-file", "", "file of the token that says who you are")
	f.BoolVar(&tokenStdin, "token-stdin", false, "read the token from the standard input and keep it")
	f.BoolVar(&use, "use", false, "make it the current context, as the first one is")
	cmd.MarkFlagsMutuallyExclusive("ca-file", "ca-hash")
	cmd.MarkFlagsMutuallyExclusive("token-file", "token-stdin")
	return cmd
}

// merge takes over what was given on the command line; of two ways to say the
// same, the new one replaces the old one.
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
		Use: "use CONTEXT", Short: "Make a context the current one",
		Long:    "Make a context the one that commands use when no other is asked for.",
		Example: "  dxpu context use prod",
	}, "the current context", func(all *contexts, name string) { all.Current = name })
}

func newContextDeleteCommand() *cobra.Command {
	return contextChange(&cobra.Command{
		Use: "delete CONTEXT", Short: "Forget a context",
		Long:    "Forget a context. Its token goes on being good: \"dxpu token delete\" revokes it.",
		Example: "  dxpu context delete prod",
	}, "deleted", func(all *contexts, name string) {
		all.Contexts = slices.DeleteFunc(all.Contexts, func(c poolContext) bool { return c.Name == name })
		if all.Current == name {
			all.Current = ""
		}
	})
}

// contextChange makes a command that does something to a context that exists.
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
