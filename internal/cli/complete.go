package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

const (
	// completionTimeout bounds the time that a shell waits for names.
	completionTimeout = 2 * time.Second
	// maxCompletions bounds the number of names: one page.
	maxCompletions = 1000
)

// A namer returns the names of all objects of one kind.
type namer func(ctx context.Context, conn *connection) ([]string, error)

// namesOf returns a namer that calls a list method.
func namesOf[Req, Res, T any](m method[Req, Res], req *Req, items func(*Res) []T, name func(T) string) namer {
	return func(ctx context.Context, conn *connection) (names []string, err error) {
		res, err := call(ctx, conn, m, req)
		if err != nil {
			return nil, err
		}
		for _, item := range items(res) {
			names = append(names, name(item))
		}
		return names, nil
	}
}

var (
	hostNames = namesOf(poolAPI.ListHosts, &dxpuv1.ListHostsRequest{PageSize: maxCompletions}, (*dxpuv1.ListHostsResponse).GetHosts,
		func(h *dxpuv1.Host) string { return h.GetNode().GetId() })
	boxNames = namesOf(poolAPI.ListBoxes, &dxpuv1.ListBoxesRequest{PageSize: maxCompletions}, (*dxpuv1.ListBoxesResponse).GetBoxes,
		func(b *dxpuv1.Box) string { return b.GetNode().GetId() })
)

// namers are keyed by the word for the argument in a command's usage line.
var namers = map[string]namer{
	"LEASE": namesOf(poolAPI.ListLeases, &dxpuv1.ListLeasesRequest{PageSize: maxCompletions}, (*dxpuv1.ListLeasesResponse).GetLeases, (*dxpuv1.Lease).GetId),
	"GPU":   namesOf(poolAPI.ListGPUs, &dxpuv1.ListGPUsRequest{PageSize: maxCompletions}, (*dxpuv1.ListGPUsResponse).GetGpus, (*dxpuv1.GPU).GetId),
	"HOST":  hostNames, "BOX": boxNames,
	"TOKEN":  namesOf(poolAPI.ListTokens, &dxpuv1.ListTokensRequest{PageSize: maxCompletions}, (*dxpuv1.ListTokensResponse).GetTokens, (*dxpuv1.Token).GetId),
	"TENANT": namesOf(poolAPI.ListTenants, &dxpuv1.ListTenantsRequest{PageSize: maxCompletions}, (*dxpuv1.ListTenantsResponse).GetTenants, (*dxpuv1.Tenant).GetId),
	"NODE": func(ctx context.Context, conn *connection) ([]string, error) {
		hosts, err := hostNames(ctx, conn)
		if err != nil {
			return nil, err
		}
		boxes, err := boxNames(ctx, conn)
		return append(hosts, boxes...), err
	},
	"MAINTENANCE": namesOf(poolAPI.ListMaintenance, &dxpuv1.ListMaintenanceRequest{PageSize: maxCompletions}, (*dxpuv1.ListMaintenanceResponse).GetMaintenance, (*dxpuv1.Maintenance).GetId),
	"MODEL": func(ctx context.Context, conn *connection) (models []string, err error) {
		res, err := call(ctx, conn, poolAPI.GetPool, &dxpuv1.GetPoolRequest{})
		for _, s := range res.GetPool().GetSpares() {
			models = append(models, s.Model)
		}
		return models, err
	},
	"CONTEXT": func(context.Context, *connection) (names []string, err error) {
		all, _, err := loadContexts()
		if err != nil {
			return nil, err
		}
		for _, c := range all.Contexts {
			names = append(names, c.Name)
		}
		return names, nil
	},
}

// kinds maps the first argument of cordon, uncordon and drain to a namer.
var kinds = map[string]string{"gpu": "GPU", "box": "BOX", "host": "HOST"}

// flagNames are the flags whose values are names.
var flagNames = map[string]string{
	"context": "CONTEXT", "host": "HOST", "box": "BOX", "lease": "LEASE", "gpu": "GPU", "tenant": "TENANT", "model": "MODEL",
}

// completeFlags registers the completion of the values of a command's own flags: words of
// a list, and names of objects.
func completeFlags(cmd *cobra.Command, conn *connection) {
	register := func(f *pflag.Flag) {
		what := flagNames[f.Name]
		words := []string(nil)
		switch v, ok := f.Value.(flagValue); {
		case ok:
			words = v.words
		case f.Name == "log-level":
			words = []string{"debug", "info", "warn", "error"}
		}
		// Registering fails only for an unknown flag.
		switch {
		case words != nil:
			_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
		case what != "" && (f.Name == "context" || inherits(cmd)):
			_ = cmd.RegisterFlagCompletionFunc(f.Name, named(conn, what, -1))
		}
	}
	cmd.LocalFlags().VisitAll(register)
}

// inherits reports whether a command calls the manager for a user: it has the flags of a
// connection.
func inherits(cmd *cobra.Command) bool { return cmd.Flag("token-file") != nil }

// complete registers the completion of the names in the arguments and of the values of
// flags of all subcommands.
func complete(root *cobra.Command, conn *connection) {
	for _, cmd := range root.Commands() {
		complete(cmd, conn)
		completeFlags(cmd, conn)
		words := strings.Fields(cmd.Use)
		if cmd.ValidArgsFunction != nil || len(cmd.ValidArgs) > 0 || len(words) < 2 {
			continue
		}
		name, several := strings.CutSuffix(strings.Trim(words[1], "[]"), "...")
		switch {
		case namers[name] != nil && several:
			cmd.ValidArgsFunction = named(conn, name, -1)
		case namers[name] != nil:
			cmd.ValidArgsFunction = named(conn, name, 0)
		case name == "KIND":
			cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
				if len(args) == 0 {
					return []string{"box", "gpu", "host"}, cobra.ShellCompDirectiveNoFileComp
				}
				if kinds[args[0]] == "" {
					return nil, cobra.ShellCompDirectiveNoFileComp
				}
				return named(conn, kinds[args[0]], -1)(cmd, args, prefix)
			}
		}
	}
}

// named completes the argument at an index, -1 for any, with the names of a kind.
func named(conn *connection, what string, at int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if at >= 0 && len(args) != at {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx := cmd.Context()
		if ctx == nil {
			ctx = context.Background()
		}
		ctx, cancel := context.WithTimeout(ctx, completionTimeout)
		defer cancel()
		names, err := namers[what](ctx, conn)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveError
		}
		names = slices.DeleteFunc(names, func(s string) bool { return !strings.HasPrefix(s, prefix) })
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
