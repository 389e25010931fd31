package cli

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// checkTenant refuses the name of a tenant for a new lease that is not defined. The
// manager does so too once it has a tenant. Before, it takes every name, for programs that
// have names of their own; one that a person has typed may be mistyped, and would have no
// limits.
func checkTenant(ctx context.Context, api poolAPI, name string) error {
	if name == "" || name == "default" {
		return nil
	}
	res, err := callOn(ctx, api, poolAPI.GetTenant, &dxpuv1.GetTenantRequest{TenantId: name})
	absent := connect.CodeOf(err) == connect.CodeNotFound || err == nil && res.Tenant.ResourceVersion == 0
	if !absent || !specName.MatchString(name) {
		return nil // the manager judges, and says why
	}
	// A tenant does not see the others.
	if me, err := callOn(ctx, api, poolAPI.WhoAmI, &dxpuv1.WhoAmIRequest{}); err != nil || me.Role == dxpuv1.Role_ROLE_TENANT {
		return nil
	}
	what := "does not exist"
	if err == nil { // it is listed because of its leases
		what = "has leases, but is not defined"
	}
	return connect.NewError(connect.CodeNotFound, fmt.Errorf("spec.tenant: tenant %q %s; an operator makes it (dxpu tenant set %s)", name, what, name))
}

// ofTenant makes a list with the filter --tenant refuse a tenant that does not exist.
func ofTenant(conn *connection, tenant *string, list func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			if err := tenantExists(cmd.Context(), conn, *tenant); err != nil {
				return err
			}
		}
		return list(cmd, args)
	}
}

// tenantExists returns an error if a tenant neither is defined nor has leases: its list would
// be as empty as that of a tenant without leases.
func tenantExists(ctx context.Context, conn *connection, name string) error {
	if name == "" || name == "default" {
		return nil
	}
	if _, err := call(ctx, conn, poolAPI.GetTenant, &dxpuv1.GetTenantRequest{TenantId: name}); connect.CodeOf(err) == connect.CodeNotFound {
		return err
	}
	return nil // the list says what else is wrong
}
