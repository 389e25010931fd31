package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

const (
	// completionTimeout is how long a shell may wait for the names of things.
	completionTimeout = 2 * time.Second
	// maxCompletions bounds how many names a shell is offered: one page.
	maxCompletions = 1000
)

// namer finds the names of one kind of thing.
type namer func(ctx context.Context, conn *connection) ([]string, error)

// namers are by what the usage of a command calls its argument.
var namers = map[string]namer{
	"LEASE": leaseNames, "GPU": gpuNames, "HOST": hostNames, "BOX": boxNames, "TOKEN": tokenNames, "TENANT": tenantNames,
	"NODE": func(ctx context.Context, conn *connection) ([]string, error) {
		hosts, err := hostNames(ctx, conn)
		if err != nil {
			return nil, err
		}
		boxes, err := boxNames(ctx, conn)
		return append(hosts, boxes...), err
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

// kinds are the words that cordon and its like begin with.
var kinds = map[string]string{"gpu": "GPU", "box": "BOX", "host": "HOST"}

// complete lets the shell complete the names of things, in the arguments of all
// commands below root and in --context.
func complete(root *cobra.Command, conn *connection) {
	for _, cmd := range root.Commands() {
		complete(cmd, conn)
		if cmd.PersistentFlags().Lookup("context") != nil {
			_ = cmd.RegisterFlagCompletionFunc("context", named(conn, "CONTEXT", -1)) // the flag is there, and nobody else completes it
		}
		words := strings.Fields(cmd.Use)
		if cmd.ValidArgsFunction != nil || len(cmd.ValidArgs) > 0 || len(words) < 2 {
			continue
		}
		what := strings.Trim(words[1], "[]")
		switch {
		case namers[what] != nil:
			cmd.ValidArgsFunction = named(conn, what, 0)
		case what == "KIND":
			cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
				if len(args) == 0 {
					return []string{"box", "gpu", "host"}, cobra.ShellCompDirectiveNoFileComp
				}
				if kinds[args[0]] == "" {
					return nil, cobra.ShellCompDirectiveNoFileComp
				}
				return named(conn, kinds[args[0]], 1)(cmd, args, prefix)
			}
		}
	}
}

// named completes the argument at an index, -1 for any, with the names of things.
// A manager that cannot be reached has none.
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

func leaseNames(ctx context.Context, conn *connection) (names []string, err error) {
	api, err := conn.pool()
	if err != nil {
		return nil, err
	}
	res, err := api.ListLeases(ctx, connect.NewRequest(&dxpuv1.ListLeasesRequest{PageSize: maxCompletions}))
	if err != nil {
		return nil, err
	}
	for _, l := range res.Msg.Leases {
		names = append(names, l.Id)
	}
	return names, nil
}

func gpuNames(ctx context.Context, conn *connection) (names []string, err error) {
	api, err := conn.pool()
	if err != nil {
		return nil, err
	}
	res, err := api.ListGPUs(ctx, connect.NewRequest(&dxpuv1.ListGPUsRequest{PageSize: maxCompletions}))
	if err != nil {
		return nil, err
	}
	for _, g := range res.Msg.Gpus {
		names = append(names, g.Id)
	}
	return names, nil
}

func hostNames(ctx context.Context, conn *connection) (names []string, err error) {
	api, err := conn.pool()
	if err != nil {
		return nil, err
	}
	res, err := api.ListHosts(ctx, connect.NewRequest(&dxpuv1.ListHostsRequest{PageSize: maxCompletions}))
	if err != nil {
		return nil, err
	}
	for _, h := range res.Msg.Hosts {
		names = append(names, h.Node.GetId())
	}
	return names, nil
}

func boxNames(ctx context.Context, conn *connection) (names []string, err error) {
	api, err := conn.pool()
	if err != nil {
		return nil, err
	}
	res, err := api.ListBoxes(ctx, connect.NewRequest(&dxpuv1.ListBoxesRequest{PageSize: maxCompletions}))
	if err != nil {
		return nil, err
	}
	for _, b := range res.Msg.Boxes {
		names = append(names, b.Node.GetId())
	}
	return names, nil
}

func tokenNames(ctx context.Context, conn *connection) (names []string, err error) {
	api, err := conn.pool()
	if err != nil {
		return nil, err
	}
	res, err := api.ListTokens(ctx, connect.NewRequest(&dxpuv1.ListTokensRequest{PageSize: maxCompletions}))
	if err != nil {
		return nil, err
	}
	for _, k := range res.Msg.Tokens {
		names = append(names, k.Id)
	}
	return names, nil
}

func tenantNames(ctx context.Context, conn *connection) (names []string, err error) {
	api, err := conn.pool()
	if err != nil {
		return nil, err
	}
	res, err := api.ListTenants(ctx, connect.NewRequest(&dxpuv1.ListTenantsRequest{PageSize: maxCompletions}))
	if err != nil {
		return nil, err
	}
	for _, n := range res.Msg.Tenants {
		names = append(names, n.Id)
	}
	return names, nil
}
