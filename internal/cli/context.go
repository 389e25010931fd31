package cli

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
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

func (all *contexts) view(c *poolContext) contextView {
	return contextView{c.Name, c.Name == all.Current, c.Manager, c.CAFile, c.CAHash, c.TokenFile, c.Token != ""}
}

func newContextListCommand() *cobra.Command {
	return valueCommand(&cobra.Command{
		Use: "list", Short: "List the contexts", Args: cobra.NoArgs,
		Long:    "List the contexts, without their tokens. A star marks the current one.",
		Example: "  dxpu context list",
	}, func(*cobra.Command, []string) ([]contextView, error) {
		all, _, err := loadContexts()
		if err != nil {
			return nil, err
		}
		out := []contextView{}
		for i := range all.Contexts {
			out = append(out, all.view(&all.Contexts[i]))
		}
		return out, nil
	}, func(w io.Writer, views []contextView) {
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
				return usage(fmt.Errorf("--%w", err))
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
