package cli

import (
	"fmt"
	"io"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

func newTokenCommand(conn *connection) *cobra.Command {
	return conn.register(group("token", "Say who may call the manager",
		`Make, list and revoke the tokens with which people and programs call the
manager. A token has a role: an admin may do everything; an operator keeps the
pool but makes no tokens and no tenants; a tenant sees and touches the leases
of one tenant. Nodes have no tokens: they enrol with a join token.`,
		`  dxpu token create --role tenant --tenant team-a --expires 2160h >team-a.token
  dxpu token list
  dxpu token delete t-k3v5c7q2mn`,
		newTokenCreateCommand(conn), tokensCommand(conn, "list"), newTokenDeleteCommand(conn)))
}

func newTokenCreateCommand(conn *connection) *cobra.Command {
	var form output
	var role string
	var expires time.Duration
	req := &dxpuv1.CreateTokenRequest{}
	cmd := &cobra.Command{
		Use: "create", Short: "Make a token and print it", Args: cobra.NoArgs,
		Long: `Make a token and print it. This is the only time that it is shown: the manager
keeps a hash of it. Give it to dxpu with --token-file, $DXPU_TOKEN or a context.`,
		Example: `  dxpu token create --role operator --description "night shift" --expires 24h
  dxpu token create --role tenant --tenant team-a`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if req.Role, err = parseEnum[dxpuv1.Role]("--role", role, "ROLE_", dxpuv1.Role_value); err != nil {
				return err
			}
			if expires != 0 {
				req.ExpiresAfter = durationpb.New(expires)
			}
			api, err := conn.pool()
			if err != nil {
				return err
			}
			res, err := api.CreateToken(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if form.given() {
				return form.write(cmd.OutOrStdout(), res.Msg)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), res.Msg.Secret)
			return err
		},
	}
	form.register(cmd)
	f := cmd.Flags()
	f.StringVar(&role, "role", "", "admin, operator or tenant")
	f.StringVar(&req.Tenant, "tenant", "", "whose, with --role tenant")
	f.StringVar(&req.Description, "description", "", "who has it and what for")
	f.DurationVar(&expires, "expires", 0, "when it ends, from now (default: never)")
	return cmd
}

func newGetTokensCommand(conn *connection) *cobra.Command { return tokensCommand(conn, "tokens") }

// tokensCommand is both "dxpu token list" and "dxpu get tokens".
func tokensCommand(conn *connection, use string) *cobra.Command {
	var form output
	cmd := &cobra.Command{
		Use: use, Short: "List the tokens, without their secrets", Args: cobra.NoArgs,
		Long:    "List the tokens, without their secrets.",
		Example: "  dxpu get tokens",
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := conn.pool()
			if err != nil {
				return err
			}
			all := &dxpuv1.ListTokensResponse{}
			req := &dxpuv1.ListTokensRequest{}
			for {
				res, err := api.ListTokens(cmd.Context(), connect.NewRequest(req))
				if err != nil {
					return err
				}
				all.Tokens = append(all.Tokens, res.Msg.Tokens...)
				if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
					break
				}
			}
			if form.given() {
				return form.write(cmd.OutOrStdout(), all)
			}
			return printTokens(cmd.OutOrStdout(), all.Tokens)
		},
	}
	form.register(cmd)
	return cmd
}

func printTokens(w io.Writer, tokens []*dxpuv1.Token) error {
	t := newTable(w, "TOKEN", "ROLE", "TENANT", "CREATED", "EXPIRES", "BY", "DESCRIPTION")
	for _, k := range tokens {
		t.row(k.Id, auth.RoleWord(k.Role), k.Tenant, date(k.CreateTime), date(k.ExpireTime), k.Creator, k.Description)
	}
	return t.flush()
}

// date prints a time to the minute, "" for none.
func date(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Local().Format("2006-01-02 15:04")
}

func newTokenDeleteCommand(conn *connection) *cobra.Command {
	return &cobra.Command{
		Use: "delete TOKEN", Short: "Revoke a token", Args: cobra.ExactArgs(1),
		Long:    "Revoke a token at once: calls and streams that use it end. TOKEN is its ID, which is no secret.",
		Example: "  dxpu token delete t-k3v5c7q2mn",
		RunE: func(cmd *cobra.Command, args []string) error {
			id := args[0]
			if parsed, ok := auth.ParseToken(id); ok {
				id = parsed // somebody has the token but not its ID
			}
			api, err := conn.pool()
			if err != nil {
				return err
			}
			if _, err := api.DeleteToken(cmd.Context(), connect.NewRequest(&dxpuv1.DeleteTokenRequest{TokenId: id})); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is deleted\n", id)
			return err
		},
	}
}

func newWhoAmICommand(conn *connection) *cobra.Command {
	var form output
	cmd := &cobra.Command{
		Use: "whoami", Short: "Say as whom the manager knows you", Args: cobra.NoArgs,
		Long:    "Say as whom the manager knows you: the ID of your token, your role, your tenant.",
		Example: "  dxpu whoami --token-file team-a.token",
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := conn.pool()
			if err != nil {
				return err
			}
			res, err := api.WhoAmI(cmd.Context(), connect.NewRequest(&dxpuv1.WhoAmIRequest{}))
			if err != nil {
				return err
			}
			if form.given() {
				return form.write(cmd.OutOrStdout(), res.Msg)
			}
			of := ""
			if res.Msg.Tenant != "" {
				of = " of " + res.Msg.Tenant
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s, with the role %s%s\n", res.Msg.Actor, auth.RoleWord(res.Msg.Role), of)
			return err
		},
	}
	form.register(cmd)
	return conn.register(cmd)
}

func newNodeCommand(conn *connection) *cobra.Command {
	return conn.register(group("node", "Forget hosts and boxes",
		"Forget hosts and boxes that do not come back.", "  dxpu node delete h1",
		newNodeDeleteCommand(conn)))
}

func newNodeDeleteCommand(conn *connection) *cobra.Command {
	req := &dxpuv1.DeleteNodeRequest{}
	cmd := &cobra.Command{
		Use: "delete NODE", Short: "Forget a host or box for good", Args: cobra.ExactArgs(1),
		Long: `Forget a host or box for good: its credential and its certificate are revoked.
While it has bindings this is refused; --force takes them away from it, too.`,
		Example: "  dxpu node delete h1",
		RunE: func(cmd *cobra.Command, args []string) error {
			req.NodeId = args[0]
			api, err := conn.pool()
			if err != nil {
				return err
			}
			if _, err := api.DeleteNode(cmd.Context(), connect.NewRequest(req)); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is deleted\n", req.NodeId)
			return err
		},
	}
	cmd.Flags().BoolVar(&req.Force, "force", false, "also while it has bindings")
	return cmd
}
