package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

func newTokenCommand(conn *connection) *cobra.Command {
	return conn.register(group("token", "Manage the tokens of callers",
		`Create, list and revoke the tokens with which people and programs call the manager.
The role of a token says what it allows. An admin may do everything. An operator
maintains the pool, but cannot create tokens or tenants. A tenant sees and changes
the leases of one tenant. Nodes have no tokens: they enrol with a join token.`,
		`  dxpu token create --role tenant --tenant team-a --expires 2160h >team-a.token
  dxpu token list
  dxpu token delete t-k3v5c7q2mn`,
		newTokenCreateCommand(conn), tokensCommand(conn, "list"), newTokenDeleteCommand(conn)))
}

func newTokenCreateCommand(conn *connection) *cobra.Command {
	var expires time.Duration
	req := &dxpuv1.CreateTokenRequest{}
	cmd := valueCommand(&cobra.Command{
		Use: "create", Short: "Create a token and print it", Args: cobra.NoArgs,
		Long: `Create a token and print it. It cannot be shown again: the manager keeps only its
hash. Pass it to dxpu with --token-file, $DXPU_TOKEN or a context.`,
		Example: `  dxpu token create --role operator --description "night shift" --expires 24h
  dxpu token create --role tenant --tenant team-a`,
	}, func(cmd *cobra.Command, _ []string) (*dxpuv1.CreateTokenResponse, error) {
		if expires != 0 {
			req.ExpiresAfter = durationpb.New(expires)
		}
		return call(cmd.Context(), conn, poolAPI.CreateToken, req)
	}, func(w io.Writer, res *dxpuv1.CreateTokenResponse) { fmt.Fprintln(w, res.Secret) })
	f := cmd.Flags()
	enumVar(f, &req.Role, "role", "admin, operator or tenant (required)")
	_ = cmd.MarkFlagRequired("role")
	f.StringVar(&req.Tenant, "tenant", "", "tenant of the token, for --role tenant")
	f.StringVar(&req.Description, "description", "", "note about the token's owner and purpose")
	f.DurationVar(&expires, "expires", 0, "lifetime of the token (default: no end)")
	return cmd
}

// tokensCommand is both "dxpu token list" and "dxpu get tokens".
func tokensCommand(conn *connection, use string) *cobra.Command {
	return listCommand(conn, &cobra.Command{
		Use: use, Short: "List tokens",
		Long:    "List the tokens, without their secrets.",
		Example: "  dxpu get tokens",
	}, poolAPI.ListTokens, &dxpuv1.ListTokensRequest{}, func(w io.Writer, all *dxpuv1.ListTokensResponse) {
		t := newTable(w, "TOKEN", "ROLE", "TENANT", "CREATED", "EXPIRES", "BY", "DESCRIPTION")
		for _, k := range all.Tokens {
			t.row(k.Id, auth.RoleWord(k.Role), k.Tenant, date(k.CreateTime), date(k.ExpireTime), k.Creator, k.Description)
		}
		t.flush()
	})
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
		Long:    "Revoke a token at once: calls and streams that use it end. TOKEN is its ID, which is not secret.",
		Example: "  dxpu token delete t-k3v5c7q2mn",
		RunE: func(cmd *cobra.Command, args []string) error {
			id := args[0]
			if parsed, ok := auth.ParseToken(id); ok {
				id = parsed // the argument is the token itself, which contains the ID
			}
			if _, err := call(cmd.Context(), conn, poolAPI.DeleteToken, &dxpuv1.DeleteTokenRequest{TokenId: id}); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is deleted\n", id)
			return err
		},
	}
}

func newWhoAmICommand(conn *connection) *cobra.Command {
	return conn.register(getCommand(conn, &cobra.Command{
		Use: "whoami", Short: "Show your identity",
		Long:    "Show your identity as the manager sees it: the ID of your token, your role and your tenant.",
		Example: "  dxpu whoami --token-file team-a.token",
	}, poolAPI.WhoAmI, &dxpuv1.WhoAmIRequest{}, itself, func(w io.Writer, res *dxpuv1.WhoAmIResponse) {
		of := ""
		if res.Tenant != "" {
			of = " of " + res.Tenant
		}
		fmt.Fprintf(w, "%s, with the role %s%s\n", res.Actor, auth.RoleWord(res.Role), of)
	}))
}

func newNodeCommand(conn *connection) *cobra.Command {
	return conn.register(group("node", "Remove hosts and boxes from the pool",
		"Remove hosts and boxes that will not come back from the pool.", "  dxpu node delete h1",
		newNodeDeleteCommand(conn)))
}

func newNodeDeleteCommand(conn *connection) *cobra.Command {
	req := &dxpuv1.DeleteNodeRequest{}
	cmd := deleteCommand(conn, &cobra.Command{
		Use: "delete NODE", Short: "Remove a host or box from the pool",
		Long: `Remove a host or box from the pool and revoke its credential and certificate. A
node with bindings cannot be removed; --force ends its bindings first.`,
		Example: "  dxpu node delete h1",
	}, poolAPI.DeleteNode, func(id string) *dxpuv1.DeleteNodeRequest {
		req.NodeId = id
		return req
	})
	cmd.Flags().BoolVar(&req.Force, "force", false, "end the node's bindings")
	return cmd
}
