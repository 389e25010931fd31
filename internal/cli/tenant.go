package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

func newTenantCommand(conn *connection) *cobra.Command {
	return conn.register(group("tenant", "Say who may have how much",
		`Make, change, list and delete tenants. A tenant has a quota: how many GPUs and
leases it may have at a time, and how urgent they may be. The tenant "default" is
that of leases that name none.`,
		`  dxpu tenant set team-a --max-gpus 16 --max-gpus-of DX100=8
  dxpu token create --role tenant --tenant team-a >team-a.token
  dxpu tenant list`,
		newTenantSetCommand(conn), tenantsCommand(conn, "list"), newTenantDeleteCommand(conn)))
}

func newGetTenantsCommand(conn *connection) *cobra.Command { return tenantsCommand(conn, "tenants") }

// tenantsCommand is both "dxpu tenant list" and "dxpu get tenants".
func tenantsCommand(conn *connection, use string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: use, Short: "List the tenants with their quotas", Args: cobra.NoArgs,
		Long:    "List the tenants with what they have and what they may have.",
		Example: "  dxpu get tenants",
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := conn.pool()
			if err != nil {
				return err
			}
			all := &dxpuv1.ListTenantsResponse{}
			req := &dxpuv1.ListTenantsRequest{}
			for {
				res, err := api.ListTenants(cmd.Context(), connect.NewRequest(req))
				if err != nil {
					return err
				}
				all.Tenants = append(all.Tenants, res.Msg.Tenants...)
				if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
					break
				}
			}
			if asJSON {
				return writeMessage(cmd.OutOrStdout(), all)
			}
			t := newTable(cmd.OutOrStdout(), "TENANT", "GPUS", "LEASES", "QUEUED", "DESCRIPTION")
			for _, n := range all.Tenants {
				t.row(n.Id, ofAtMost(n.Gpus, n.Quota.GetMaxGpus()), ofAtMost(n.Leases, n.Quota.GetMaxLeases()), n.LeasesPending, n.Description)
			}
			return t.flush()
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// ofAtMost is how much there is of what there may be.
func ofAtMost(have, most uint32) string {
	if most == 0 {
		return strconv.FormatUint(uint64(have), 10)
	}
	return fmt.Sprintf("%d of %d", have, most)
}

func newDescribeTenantCommand(conn *connection) *cobra.Command {
	return describer(conn, "tenant", "TENANT", "team-a",
		func(cmd *cobra.Command, api dxpuv1connect.PoolServiceClient, id string) (*dxpuv1.Tenant, error) {
			res, err := api.GetTenant(cmd.Context(), connect.NewRequest(&dxpuv1.GetTenantRequest{TenantId: id}))
			if err != nil {
				return nil, err
			}
			return res.Msg.Tenant, nil
		}, describeTenant)
}

func describeTenant(w io.Writer, n *dxpuv1.Tenant) error {
	q := n.Quota
	t := newTable(w, "tenant", n.Id)
	t.row("about", n.Description)
	t.row("gpus", ofAtMost(n.Gpus, q.GetMaxGpus()))
	for _, model := range slices.Sorted(maps.Keys(q.GetMaxGpusByModel())) {
		t.row("", fmt.Sprintf("at most %d of model %s", q.MaxGpusByModel[model], model))
	}
	t.row("leases", fmt.Sprintf("%s, %d of them in the queue", ofAtMost(n.Leases, q.GetMaxLeases()), n.LeasesPending))
	if q != nil && q.MaxPriority != nil {
		t.row("priority", fmt.Sprintf("at most %d", *q.MaxPriority))
	}
	return t.flush()
}

func newTenantSetCommand(conn *connection) *cobra.Command {
	var gpus, leases uint32
	var priority int32
	var byModel []string
	var about string
	cmd := &cobra.Command{
		Use: "set TENANT", Short: "Make a tenant, or change its quota", Args: cobra.ExactArgs(1),
		Long: `Make a tenant, or change what is given of one that exists. What it has already
stays, also when it is more than it may have now.`,
		Example: `  dxpu tenant set team-a --max-gpus 16 --max-gpus-of DX100=8 --max-priority 10
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
			n := &dxpuv1.Tenant{Id: args[0]}
			old, err := api.GetTenant(cmd.Context(), connect.NewRequest(&dxpuv1.GetTenantRequest{TenantId: args[0]}))
			switch {
			case err == nil:
				n = &dxpuv1.Tenant{Id: args[0], Description: old.Msg.Tenant.Description, Quota: old.Msg.Tenant.Quota, ResourceVersion: old.Msg.Tenant.ResourceVersion}
			case connect.CodeOf(err) != connect.CodeNotFound:
				return err
			}
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
			res, err := api.PutTenant(cmd.Context(), connect.NewRequest(&dxpuv1.PutTenantRequest{Tenant: n}))
			if err != nil {
				return err
			}
			return describeTenant(cmd.OutOrStdout(), res.Msg.Tenant)
		},
	}
	f := cmd.Flags()
	f.StringVar(&about, "description", "", "who it is")
	f.Uint32Var(&gpus, "max-gpus", 0, "how many GPUs it may have; 0: any number")
	f.Uint32Var(&leases, "max-leases", 0, "how many leases it may have, those in the queue too; 0: any number")
	f.StringArrayVar(&byModel, "max-gpus-of", nil, "how many GPUs of a model it may have, MODEL=COUNT; repeatable; 0: any number")
	f.Int32Var(&priority, "max-priority", 0, "the highest priority of its leases, -100 to 100 (default: any)")
	return cmd
}

// parseModels reads quotas of models.
func parseModels(words []string) (map[string]uint32, error) {
	out := map[string]uint32{}
	for _, w := range words {
		i := strings.LastIndexByte(w, '=')
		if i < 1 {
			return nil, &usageError{withHint(fmt.Errorf("--max-gpus-of: %q is not MODEL=COUNT", w), "write it like DX100=8")}
		}
		n, err := strconv.ParseUint(w[i+1:], 10, 32)
		if err != nil {
			return nil, &usageError{withHint(fmt.Errorf("--max-gpus-of: %q is no number", w[i+1:]), "write it like DX100=8")}
		}
		out[w[:i]] = uint32(n)
	}
	return out, nil
}

func newTenantDeleteCommand(conn *connection) *cobra.Command {
	return &cobra.Command{
		Use: "delete TENANT", Short: "Forget a tenant, with its tokens", Args: cobra.ExactArgs(1),
		Long:    "Forget a tenant. While it has leases this is refused. Its tokens are good for nothing afterwards.",
		Example: "  dxpu tenant delete team-a",
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := conn.pool()
			if err != nil {
				return err
			}
			if _, err := api.DeleteTenant(cmd.Context(), connect.NewRequest(&dxpuv1.DeleteTenantRequest{TenantId: args[0]})); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is deleted\n", args[0])
			return err
		},
	}
}
