package cli

import (
	"fmt"
	"io"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

func newGetCommand(conn *connection) *cobra.Command {
	return conn.register(group("get", "List what the pool has",
		`List what the pool has: hosts, boxes, gpus, leases, tenants, events,
tokens, the audit log, or the pool as a whole.`,
		`  dxpu get gpus --state free
  dxpu get leases --all --json`,
		newGetPoolCommand(conn), newGetHostsCommand(conn), newGetBoxesCommand(conn), newGetGPUsCommand(conn),
		newGetLeasesCommand(conn), newGetEventsCommand(conn), newGetTenantsCommand(conn), newGetTokensCommand(conn), newGetAuditCommand(conn)))
}

func newGetPoolCommand(conn *connection) *cobra.Command {
	var form output
	cmd := &cobra.Command{
		Use: "pool", Short: "Sum up the pool", Args: cobra.NoArgs,
		Long:    "Sum up the pool: nodes, GPUs, spares and leases.",
		Example: "  dxpu get pool",
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := conn.pool()
			if err != nil {
				return err
			}
			res, err := api.GetPool(cmd.Context(), connect.NewRequest(&dxpuv1.GetPoolRequest{}))
			if err != nil {
				return err
			}
			if form.given() {
				return form.write(cmd.OutOrStdout(), res.Msg.Pool)
			}
			return printPool(cmd.OutOrStdout(), res.Msg.Pool)
		},
	}
	form.register(cmd)
	return cmd
}

func printPool(w io.Writer, p *dxpuv1.Pool) error {
	if err := printSums(w, p); err != nil || len(p.Spares) == 0 {
		return err
	}
	_, _ = fmt.Fprintln(w)
	t := newTable(w, "MODEL", "USABLE", "FREE", "SPARES HELD", "WANTED", "BECAUSE")
	for _, s := range p.Spares {
		t.row(s.Model, s.Usable, s.Free, s.Held, s.Wanted, s.Explanation)
	}
	return t.flush()
}

func printSums(w io.Writer, p *dxpuv1.Pool) error {
	_, err := fmt.Fprintf(w, `hosts   %d of %d report
boxes   %d of %d report
gpus    %d: %d free (%d held back as spares), %d bound, %d not available
leases  %d, and %d in the queue
`, p.HostsConnected, p.Hosts, p.BoxesConnected, p.Boxes,
		p.Gpus, p.GpusFree, p.SparesHeld, p.GpusBound, p.GpusUnavailable, p.LeasesActive, p.LeasesPending)
	if err != nil || len(p.Managers) < 2 {
		return err
	}
	label := "managers"
	for _, m := range p.Managers {
		role := "follows"
		if m.Leader {
			role = "leads"
		}
		if _, err := fmt.Fprintf(w, "%-8s %s %s %s\n", label, m.Id, m.Url, role); err != nil {
			return err
		}
		label = ""
	}
	return nil
}

func newGetHostsCommand(conn *connection) *cobra.Command {
	var form output
	var labels map[string]string
	cmd := &cobra.Command{
		Use: "hosts", Aliases: []string{"host"}, Short: "List hosts", Args: cobra.NoArgs,
		Long:    "List the hosts with the slots of their virtual switches.",
		Example: "  dxpu get hosts --label zone=a",
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := conn.pool()
			if err != nil {
				return err
			}
			all := &dxpuv1.ListHostsResponse{}
			req := &dxpuv1.ListHostsRequest{Labels: labels}
			for {
				res, err := api.ListHosts(cmd.Context(), connect.NewRequest(req))
				if err != nil {
					return err
				}
				all.Hosts = append(all.Hosts, res.Msg.Hosts...)
				if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
					break
				}
			}
			if form.given() {
				return form.write(cmd.OutOrStdout(), all)
			}
			return printHosts(cmd.OutOrStdout(), all.Hosts)
		},
	}
	form.register(cmd)
	cmd.Flags().StringToStringVar(&labels, "label", nil, "only those with this label, KEY=VALUE")
	return cmd
}

func printHosts(w io.Writer, hosts []*dxpuv1.Host) error {
	t := newTable(w, "HOST", "STATE", "SLOTS", "USED", "RACK", "ADDRESS")
	for _, h := range hosts {
		used := 0
		for _, s := range h.Slots {
			if s.BindingId != "" {
				used++
			}
		}
		t.row(h.Node.Id, nodeState(h.Node), len(h.Slots), used, h.Node.Rack, addressList(h.Node))
	}
	return t.flush()
}

func nodeState(n *dxpuv1.NodeInfo) string {
	s := "lost"
	if n.Connected {
		s = "connected"
	}
	switch {
	case n.Draining:
		s += ",draining"
	case n.Cordoned:
		s += ",cordoned"
	}
	if n.Unstable {
		s += ",unstable"
	}
	return s
}

func addressList(n *dxpuv1.NodeInfo) string {
	var out []string
	for _, a := range n.Addresses {
		out = append(out, a.Address)
	}
	return strings.Join(out, ",")
}

func newGetBoxesCommand(conn *connection) *cobra.Command {
	var form output
	var labels map[string]string
	cmd := &cobra.Command{
		Use: "boxes", Aliases: []string{"box"}, Short: "List GPU boxes", Args: cobra.NoArgs,
		Long:    "List the GPU boxes.",
		Example: "  dxpu get boxes",
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := conn.pool()
			if err != nil {
				return err
			}
			all := &dxpuv1.ListBoxesResponse{}
			req := &dxpuv1.ListBoxesRequest{Labels: labels}
			for {
				res, err := api.ListBoxes(cmd.Context(), connect.NewRequest(req))
				if err != nil {
					return err
				}
				all.Boxes = append(all.Boxes, res.Msg.Boxes...)
				if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
					break
				}
			}
			if form.given() {
				return form.write(cmd.OutOrStdout(), all)
			}
			return printBoxes(cmd.OutOrStdout(), all.Boxes)
		},
	}
	form.register(cmd)
	cmd.Flags().StringToStringVar(&labels, "label", nil, "only those with this label, KEY=VALUE")
	return cmd
}

func printBoxes(w io.Writer, boxes []*dxpuv1.Box) error {
	t := newTable(w, "BOX", "KIND", "STATE", "GPUS", "FREE", "RACK", "ADDRESS")
	for _, b := range boxes {
		free := 0
		for _, g := range b.Gpus {
			if g.State == dxpuv1.GPUState_GPU_STATE_FREE {
				free++
			}
		}
		t.row(b.Node.Id, enumWord(b.Kind, "BOX_KIND_"), nodeState(b.Node), len(b.Gpus), free, b.Node.Rack, addressList(b.Node))
	}
	return t.flush()
}

func newGetGPUsCommand(conn *connection) *cobra.Command {
	var form output
	var state, health string
	req := &dxpuv1.ListGPUsRequest{}
	cmd := &cobra.Command{
		Use: "gpus", Aliases: []string{"gpu"}, Short: "List GPUs", Args: cobra.NoArgs,
		Long:    "List the GPUs of the pool, what state they are in and who has them.",
		Example: "  dxpu get gpus --model DX100 --state free",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if req.State, err = parseEnum[dxpuv1.GPUState]("--state", state, "GPU_STATE_", dxpuv1.GPUState_value); err != nil {
				return err
			}
			if req.Health, err = parseEnum[dxpuv1.Health]("--health", health, "HEALTH_", dxpuv1.Health_value); err != nil {
				return err
			}
			api, err := conn.pool()
			if err != nil {
				return err
			}
			all := &dxpuv1.ListGPUsResponse{}
			for {
				res, err := api.ListGPUs(cmd.Context(), connect.NewRequest(req))
				if err != nil {
					return err
				}
				all.Gpus = append(all.Gpus, res.Msg.Gpus...)
				if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
					break
				}
			}
			if form.given() {
				return form.write(cmd.OutOrStdout(), all)
			}
			return printGPUs(cmd.OutOrStdout(), all.Gpus)
		},
	}
	form.register(cmd)
	f := cmd.Flags()
	f.StringVar(&req.BoxId, "box", "", "only those of this box")
	f.StringVar(&req.HostId, "host", "", "only those attached to this host")
	f.StringVar(&req.LeaseId, "lease", "", "only those of this lease")
	f.StringVar(&req.Model, "model", "", "only this model")
	f.StringVar(&state, "state", "", "only those that are free, bound, releasing or unavailable")
	f.StringVar(&health, "health", "", "only those that are ok, degraded, failed or unreachable")
	return cmd
}

func printGPUs(w io.Writer, gpus []*dxpuv1.GPU) error {
	t := newTable(w, "GPU", "MODEL", "MEMORY", "HEALTH", "STATE", "USE", "LEASE", "HOST", "ERRORS")
	for _, g := range gpus {
		host := ""
		if g.BindingId != "" {
			host = fmt.Sprintf("%s/%d", g.HostId, g.HostSlot)
		}
		t.row(g.Id, g.Device.GetModel(), memory(g.Device.GetMemoryBytes()), gpuHealth(g), gpuState(g), useWord(g.Use, g.Ejected),
			g.LeaseId, host, errorsWord(g.Errors))
	}
	return t.flush()
}

func newGetLeasesCommand(conn *connection) *cobra.Command {
	var form output
	req := &dxpuv1.ListLeasesRequest{}
	cmd := &cobra.Command{
		Use: "leases", Aliases: []string{"lease"}, Short: "List leases", Args: cobra.NoArgs,
		Long:    "List the leases; those that are over only with --all.",
		Example: "  dxpu get leases --tenant team-a",
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := conn.pool()
			if err != nil {
				return err
			}
			all := &dxpuv1.ListLeasesResponse{}
			for {
				res, err := api.ListLeases(cmd.Context(), connect.NewRequest(req))
				if err != nil {
					return err
				}
				all.Leases = append(all.Leases, res.Msg.Leases...)
				if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
					break
				}
			}
			if form.given() {
				return form.write(cmd.OutOrStdout(), all)
			}
			return printLeases(cmd.OutOrStdout(), all.Leases)
		},
	}
	form.register(cmd)
	cmd.Flags().StringVar(&req.Tenant, "tenant", "", "only those of this tenant")
	cmd.Flags().StringVar(&req.HostId, "host", "", "only those of this host")
	cmd.Flags().BoolVar(&req.IncludeEnded, "all", false, "those that are over, too")
	return cmd
}

func printLeases(w io.Writer, leases []*dxpuv1.Lease) error {
	t := newTable(w, "LEASE", "TENANT", "STATE", "HOST", "GPUS", "REASON")
	for _, l := range leases {
		t.row(l.Id, l.Spec.Tenant, enumWord(l.State, "LEASE_STATE_"), l.HostId, strings.Join(gpusOf(l), ","), l.StateReason)
	}
	return t.flush()
}

// gpusOf returns the GPUs that a lease has or is getting.
func gpusOf(l *dxpuv1.Lease) []string {
	var out []string
	for _, b := range l.Bindings {
		switch b.State {
		case dxpuv1.BindingState_BINDING_STATE_PREPARING, dxpuv1.BindingState_BINDING_STATE_READY, dxpuv1.BindingState_BINDING_STATE_ATTACHED:
			out = append(out, b.GpuId)
		}
	}
	return out
}

// parseEnum finds a value by its word, "" being the unspecified one.
func parseEnum[E ~int32](flag, word, prefix string, values map[string]int32) (E, error) {
	if word == "" {
		return 0, nil
	}
	v, ok := values[prefix+strings.ToUpper(strings.ReplaceAll(word, "-", "_"))]
	if !ok || v == 0 {
		var words []string
		for i := int32(1); i < int32(len(values)); i++ {
			for name, n := range values {
				if n == i {
					words = append(words, strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, prefix), "_", "-")))
				}
			}
		}
		return 0, &usageError{withHint(fmt.Errorf("%s: unknown word %q", flag, word), "one of %s", strings.Join(words, ", "))}
	}
	return E(v), nil
}
