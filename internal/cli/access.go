package cli

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

func newTenantCommand(conn *connection) *cobra.Command {
	return conn.register(group("tenant", "Manage tenants and their quotas",
		`Create, change, list and delete tenants. The quota of a tenant limits its GPUs, its
leases and their priority. A lease without a tenant belongs to the tenant "default".`,
		`  dxpu tenant set team-a --max-gpus 16 --max-gpus-of DX100=8
  dxpu token create --role tenant --tenant team-a >team-a.token
  dxpu tenant list`,
		newTenantSetCommand(conn), tenantsCommand(conn, "list [TENANT...]"), newTenantDeleteCommand(conn)))
}

// tenantsCommand is both "dxpu tenant list" and "dxpu get tenants".
func tenantsCommand(conn *connection, use string, aliases ...string) *cobra.Command {
	return listCommand(conn, &cobra.Command{
		Use: use, Aliases: aliases, Short: "List tenants with their quotas",
		Long:    "List the tenants with their GPUs and leases, and the quotas for them.",
		Example: "  dxpu get tenants",
	}, poolAPI.ListTenants, &dxpuv1.ListTenantsRequest{}, func(w io.Writer, all *dxpuv1.ListTenantsResponse) {
		t := newTable(w, "TENANT", "GPUS", "LEASES", "QUEUED", "DESCRIPTION")
		for _, n := range all.Tenants {
			t.row(n.Id, outOf(n.Gpus, n.Quota.GetMaxGpus()), outOf(n.Leases, n.Quota.GetMaxLeases()), n.LeasesPending, n.Description)
		}
		t.flush()
	}, oneOf(poolAPI.GetTenant,
		func(name string) *dxpuv1.GetTenantRequest { return &dxpuv1.GetTenantRequest{TenantId: name} }, (*dxpuv1.GetTenantResponse).GetTenant))
}

// outOf prints a number and its limit, if there is one.
func outOf(n, limit uint32) string {
	if limit == 0 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d of %d", n, limit)
}

func describeTenant(w io.Writer, n *dxpuv1.Tenant) {
	q := n.Quota
	t := newTable(w, "tenant", n.Id)
	t.row("about", n.Description)
	t.row("gpus", outOf(n.Gpus, q.GetMaxGpus()))
	if q.GuaranteedGpus != nil {
		t.row("", fmt.Sprintf("%d guaranteed, %d borrowed", q.GetGuaranteedGpus(), n.BorrowedGpus))
	}
	for _, model := range slices.Sorted(maps.Keys(q.GetMaxGpusByModel())) {
		t.row("", fmt.Sprintf("at most %d of model %s", q.MaxGpusByModel[model], model))
	}
	t.row("leases", fmt.Sprintf("%s, %d of them in the queue", outOf(n.Leases, q.GetMaxLeases()), n.LeasesPending))
	t.row("weight", max(1, q.GetWeight()))
	t.row("priority", fmt.Sprintf("at most %d", q.GetMaxPriority())) // 0 without a limit of its own
	t.flush()
}

func newTenantSetCommand(conn *connection) *cobra.Command {
	var gpus, leases, weight uint32
	var priority, guaranteed int32
	var byModel []string
	var about string
	cmd := &cobra.Command{
		Use: "set TENANT", Short: "Create a tenant, or change its quota", Args: cobra.ExactArgs(1),
		Long: `Create a tenant, or change the given properties of an existing one. GPUs and leases
that the tenant already has stay, even if they exceed the new quota.

A tenant with guaranteed GPUs gets them back whenever it requests them: its leases
preempt those of tenants that have more than their own guarantee. It may have more GPUs,
up to --max-gpus, but only in preemptible leases.`,
		Example: `  dxpu tenant set team-a --max-gpus 16 --max-gpus-of DX100=8 --max-priority 10
  dxpu tenant set team-b --guaranteed-gpus 8 --max-gpus 32
  dxpu tenant set team-a --max-gpus 0`,
		RunE: func(cmd *cobra.Command, args []string) error {
			models, err := parseModels(byModel)
			if err != nil {
				return err
			}
			api, err := conn.pool()
			if err != nil {
				return err
			}
			old, err := callOn(cmd.Context(), api, poolAPI.GetTenant, &dxpuv1.GetTenantRequest{TenantId: args[0]})
			if err != nil && connect.CodeOf(err) != connect.CodeNotFound {
				return err
			}
			t := old.GetTenant() // nil for a new tenant
			n := &dxpuv1.Tenant{Id: args[0], Description: t.GetDescription(), Quota: t.GetQuota(), ResourceVersion: t.GetResourceVersion()}
			if n.Quota == nil {
				n.Quota = &dxpuv1.Quota{}
			}
			given := cmd.Flags().Changed
			if given("description") {
				n.Description = about
			}
			if given("max-gpus") {
				n.Quota.MaxGpus = gpus
			}
			if given("max-leases") {
				n.Quota.MaxLeases = leases
			}
			if given("weight") { // 0 would be the default
				if err := inRange("--weight", 1, 1000, int(weight)); err != nil {
					return err
				}
				n.Quota.Weight = weight
			}
			if given("guaranteed-gpus") {
				if err := inRange("--guaranteed-gpus", -1, math.MaxInt32, int(guaranteed)); err != nil {
					return err
				}
				n.Quota.GuaranteedGpus = nil
				if guaranteed >= 0 {
					n.Quota.GuaranteedGpus = proto.Uint32(uint32(guaranteed))
				}
			}
			if given("max-priority") {
				n.Quota.MaxPriority = &priority
			}
			if n.Quota.MaxGpusByModel == nil {
				n.Quota.MaxGpusByModel = map[string]uint32{}
			}
			for model, most := range models {
				if n.Quota.MaxGpusByModel[model] = most; most == 0 {
					delete(n.Quota.MaxGpusByModel, model)
				}
			}
			res, err := callOn(cmd.Context(), api, poolAPI.PutTenant, &dxpuv1.PutTenantRequest{Tenant: n})
			if err != nil {
				return err
			}
			return printValue(cmd, nil, res.Tenant, describeTenant)
		},
	}
	f := cmd.Flags()
	f.StringVar(&about, "description", "", "note about the tenant")
	f.Uint32Var(&gpus, "max-gpus", 0, "`limit` of GPUs; 0: no limit")
	f.Int32Var(&guaranteed, "guaranteed-gpus", -1, "GPUs that the tenant can always have, a `number`; -1: none, and the tenant borrows none")
	f.Uint32Var(&leases, "max-leases", 0, "`limit` of leases, including those in the queue; 0: no limit")
	f.Uint32Var(&weight, "weight", 1, "`weight` of the tenant's share of the pool in the order of the queue, 1 to 1000")
	f.StringArrayVar(&byModel, "max-gpus-of", nil, "limit of GPUs of one model, `MODEL=COUNT`; repeatable; 0: no limit")
	f.Int32Var(&priority, "max-priority", 0, "highest priority of the tenant's leases, a `number` from -100 to 100 (default 0; operators may create leases above it)")
	return cmd
}

// parseModels parses the values of --max-gpus-of.
func parseModels(words []string) (map[string]uint32, error) {
	out := map[string]uint32{}
	for _, w := range words {
		i := strings.LastIndexByte(w, '=')
		n, err := strconv.ParseUint(w[i+1:], 10, 32)
		if i < 1 || err != nil {
			return nil, usage(withHint(fmt.Errorf("--max-gpus-of: %q is not MODEL=COUNT", w), "write it like DX100=8"))
		}
		if strings.Contains(w[:i], "=") {
			return nil, usage(withHint(fmt.Errorf("--max-gpus-of: %q has several limits", w), "repeat the flag for each model"))
		}
		if _, twice := out[w[:i]]; twice {
			return nil, usagef("--max-gpus-of: model %s is given twice", w[:i])
		}
		out[w[:i]] = uint32(n)
	}
	return out, nil
}

func newTenantDeleteCommand(conn *connection) *cobra.Command {
	return deleteCommand(conn, &cobra.Command{
		Use: "delete TENANT...", Short: "Delete tenants and their tokens",
		Long:    "Delete tenants and their tokens. A tenant with leases cannot be deleted.",
		Example: "  dxpu tenant delete team-a",
	}, poolAPI.DeleteTenant, func(id string) *dxpuv1.DeleteTenantRequest { return &dxpuv1.DeleteTenantRequest{TenantId: id} })
}

func newTokenCommand(conn *connection) *cobra.Command {
	return conn.register(group("token", "Manage the tokens of callers",
		`Create, list and revoke the tokens with which people and programs call the manager.
The role of a token says what it allows. An admin may do everything. An operator
maintains the pool, but cannot create tokens or tenants. A tenant sees and changes
the leases of one tenant. Nodes have no tokens: they enrol with a join token.`,
		`  dxpu token create --role tenant --tenant team-a --expires 2160h >team-a.token
  dxpu token list
  dxpu token delete t-k3v5c7q2mn`,
		newTokenCreateCommand(conn), tokensCommand(conn, "list [TOKEN...]"), newTokenDeleteCommand(conn)))
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
		if req.Role == dxpuv1.Role_ROLE_TENANT && req.Tenant == "" {
			return nil, usagef("--tenant is missing: a token of the role tenant is for one tenant")
		}
		if expires != 0 {
			req.ExpiresAfter = durationpb.New(expires)
		}
		return call(cmd.Context(), conn, poolAPI.CreateToken, req)
	}, func(w io.Writer, res *dxpuv1.CreateTokenResponse) { fmt.Fprintln(w, res.Secret) })
	f := cmd.Flags()
	enumVar(f, &req.Role, "role", "admin, operator or tenant (required)", // nodes enrol with a join token
		dxpuv1.Role_ROLE_ADMIN, dxpuv1.Role_ROLE_OPERATOR, dxpuv1.Role_ROLE_TENANT)
	_ = cmd.MarkFlagRequired("role")
	f.StringVar(&req.Tenant, "tenant", "", "tenant of the token, for --role tenant")
	f.StringVar(&req.Description, "description", "", "note about the token's owner and purpose")
	positiveDurationVar(f, &expires, "expires", 0, "lifetime of the token (default: no end)")
	return cmd
}

// tokensCommand is both "dxpu token list" and "dxpu get tokens".
func tokensCommand(conn *connection, use string, aliases ...string) *cobra.Command {
	return listCommand(conn, &cobra.Command{
		Use: use, Aliases: aliases, Short: "List tokens",
		Long:    "List the tokens, without their secrets.",
		Example: "  dxpu get tokens",
	}, poolAPI.ListTokens, &dxpuv1.ListTokensRequest{}, func(w io.Writer, all *dxpuv1.ListTokensResponse) {
		t := newTable(w, "TOKEN", "ROLE", "TENANT", "CREATED", "EXPIRES", "BY", "DESCRIPTION")
		for _, k := range all.Tokens {
			t.row(k.Id, auth.RoleWord(k.Role), k.Tenant, date(k.CreateTime), date(k.ExpireTime), k.Creator, k.Description)
		}
		t.flush()
	}, nil)
}

// date prints a time to the minute, "" for none.
func date(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Local().Format("2006-01-02 15:04")
}

func newTokenDeleteCommand(conn *connection) *cobra.Command {
	return deleteCommand(conn, &cobra.Command{
		Use: "delete TOKEN...", Short: "Revoke tokens",
		Long:    "Revoke tokens at once: calls and streams that use them end. TOKEN is an ID, which is not secret.",
		Example: "  dxpu token delete t-k3v5c7q2mn",
	}, poolAPI.DeleteToken, func(id string) *dxpuv1.DeleteTokenRequest { return &dxpuv1.DeleteTokenRequest{TokenId: tokenID(id)} })
}

// tokenID returns the ID in a token, if a user gave the token itself.
func tokenID(id string) string {
	if parsed, ok := auth.ParseToken(id); ok {
		return parsed
	}
	return id
}

func newWhoAmICommand(conn *connection) *cobra.Command {
	return conn.register(getCommand(conn, &cobra.Command{
		Use: "whoami", Short: "Show your identity",
		Long:    "Show your identity as the manager sees it: the ID of your token, your role and your tenant.",
		Example: "  dxpu whoami --token-file team-a.token",
	}, poolAPI.WhoAmI, func([]string) *dxpuv1.WhoAmIRequest { return &dxpuv1.WhoAmIRequest{} }, itself, func(w io.Writer, res *dxpuv1.WhoAmIResponse) {
		of := ""
		if res.Tenant != "" {
			of = " of " + res.Tenant
		}
		fmt.Fprintf(w, "%s, with the role %s%s\n", res.Actor, auth.RoleWord(res.Role), of)
	}))
}

func newNodeCommand(conn *connection) *cobra.Command {
	return conn.register(group("node", "Wait for hosts and boxes, or remove them",
		"Wait for hosts and boxes that were started, and remove those that will not come back.",
		"  dxpu node wait h1 box-a\n  dxpu node delete h1",
		newNodeWaitCommand(conn), newNodeDeleteCommand(conn)))
}

func newNodeDeleteCommand(conn *connection) *cobra.Command {
	req := &dxpuv1.DeleteNodeRequest{}
	cmd := deleteCommand(conn, &cobra.Command{
		Use: "delete NODE...", Short: "Remove hosts or boxes from the pool",
		Long: `Remove hosts or boxes from the pool and revoke their credentials and certificates. A
node with bindings cannot be removed; --force ends its bindings first.`,
		Example: "  dxpu node delete h1",
	}, poolAPI.DeleteNode, func(id string) *dxpuv1.DeleteNodeRequest {
		req.NodeId = id
		return req
	})
	cmd.Flags().BoolVar(&req.Force, "force", false, "end the node's bindings")
	return cmd
}
