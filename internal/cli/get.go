package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

func newGetCommand(conn *connection) *cobra.Command {
	return conn.register(group("get", "List the contents of the pool",
		`List hosts, boxes, GPUs, leases, tenants, events, tokens or the audit log, or
summarise the pool.`,
		`  dxpu get gpus --state free
  dxpu get leases --all --json`,
		newGetPoolCommand(conn), newGetHostsCommand(conn), newGetBoxesCommand(conn), newGetGPUsCommand(conn),
		newGetLeasesCommand(conn), eventsCommand(conn), tenantsCommand(conn, "tenants"), tokensCommand(conn, "tokens"), newGetAuditCommand(conn)))
}

func newGetPoolCommand(conn *connection) *cobra.Command {
	return getCommand(conn, &cobra.Command{
		Use: "pool", Short: "Summarise the pool",
		Long:    "Summarise the pool: its nodes, GPUs, spares and leases.",
		Example: "  dxpu get pool",
	}, poolAPI.GetPool, &dxpuv1.GetPoolRequest{}, (*dxpuv1.GetPoolResponse).GetPool, printPool)
}

func printPool(w io.Writer, p *dxpuv1.Pool) {
	printSums(w, p)
	if len(p.Spares) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := newTable(w, "MODEL", "USABLE", "FREE", "SPARES HELD", "WANTED", "REASON")
	for _, s := range p.Spares {
		t.row(s.Model, s.Usable, s.Free, s.Held, s.Wanted, s.Explanation)
	}
	t.flush()
}

func printSums(w io.Writer, p *dxpuv1.Pool) {
	fmt.Fprintf(w, `hosts   %d of %d connected
boxes   %d of %d connected
gpus    %d: %d free (%d held back as spares), %d bound, %d unavailable
leases  %d, and %d in the queue
`, p.HostsConnected, p.Hosts, p.BoxesConnected, p.Boxes,
		p.Gpus, p.GpusFree, p.SparesHeld, p.GpusBound, p.GpusUnavailable, p.LeasesActive, p.LeasesPending)
	if len(p.Managers) < 2 {
		return
	}
	label := "managers"
	for _, m := range p.Managers {
		role := "follower"
		if m.Leader {
			role = "leader"
		}
		fmt.Fprintf(w, "%-8s %s %s %s\n", label, m.Id, m.Url, role)
		label = ""
	}
}

func newGetHostsCommand(conn *connection) *cobra.Command {
	req := &dxpuv1.ListHostsRequest{}
	cmd := listCommand(conn, &cobra.Command{
		Use: "hosts", Aliases: []string{"host"}, Short: "List hosts",
		Long:    "List the hosts and how many slots of their virtual switches are in use.",
		Example: "  dxpu get hosts --label zone=a",
	}, poolAPI.ListHosts, req, printHosts)
	cmd.Flags().StringToStringVar(&req.Labels, "label", nil, "show only hosts with this label, `KEY=VALUE`")
	return cmd
}

func printHosts(w io.Writer, all *dxpuv1.ListHostsResponse) {
	t := newTable(w, "HOST", "STATE", "SLOTS", "USED", "RACK", "ADDRESS")
	for _, h := range all.Hosts {
		used := 0
		for _, s := range h.Slots {
			if s.BindingId != "" {
				used++
			}
		}
		t.row(h.Node.Id, nodeState(h.Node), len(h.Slots), used, h.Node.Rack, addressList(h.Node))
	}
	t.flush()
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
	req := &dxpuv1.ListBoxesRequest{}
	cmd := listCommand(conn, &cobra.Command{
		Use: "boxes", Aliases: []string{"box"}, Short: "List GPU boxes",
		Long:    "List the GPU boxes and how many of their GPUs are free.",
		Example: "  dxpu get boxes",
	}, poolAPI.ListBoxes, req, printBoxes)
	cmd.Flags().StringToStringVar(&req.Labels, "label", nil, "show only boxes with this label, `KEY=VALUE`")
	return cmd
}

func printBoxes(w io.Writer, all *dxpuv1.ListBoxesResponse) {
	t := newTable(w, "BOX", "KIND", "STATE", "GPUS", "FREE", "RACK", "ADDRESS")
	for _, b := range all.Boxes {
		free := 0
		for _, g := range b.Gpus {
			if g.State == dxpuv1.GPUState_GPU_STATE_FREE {
				free++
			}
		}
		t.row(b.Node.Id, enumWord(b.Kind), nodeState(b.Node), len(b.Gpus), free, b.Node.Rack, addressList(b.Node))
	}
	t.flush()
}

func newGetGPUsCommand(conn *connection) *cobra.Command {
	req := &dxpuv1.ListGPUsRequest{}
	cmd := listCommand(conn, &cobra.Command{
		Use: "gpus", Aliases: []string{"gpu"}, Short: "List GPUs",
		Long:    "List the GPUs of the pool with their health, their state and the lease that holds them.",
		Example: "  dxpu get gpus --model DX100 --state free",
	}, poolAPI.ListGPUs, req, func(w io.Writer, all *dxpuv1.ListGPUsResponse) { printGPUs(w, all.Gpus) })
	f := cmd.Flags()
	f.StringVar(&req.BoxId, "box", "", "show only GPUs of this box")
	f.StringVar(&req.HostId, "host", "", "show only GPUs attached to this host")
	f.StringVar(&req.LeaseId, "lease", "", "show only GPUs of this lease")
	f.StringVar(&req.Model, "model", "", "show only this model")
	enumVar(f, &req.State, "state", "show only GPUs that are free, bound, releasing or unavailable")
	enumVar(f, &req.Health, "health", "show only GPUs that are ok, degraded, failed or unreachable")
	return cmd
}

func printGPUs(w io.Writer, gpus []*dxpuv1.GPU) {
	t := newTable(w, "GPU", "MODEL", "MEMORY", "HEALTH", "STATE", "USE", "LEASE", "HOST", "ERRORS")
	for _, g := range gpus {
		host := ""
		if g.BindingId != "" {
			host = fmt.Sprintf("%s/%d", g.HostId, g.HostSlot)
		}
		t.row(g.Id, g.Device.GetModel(), size(g.Device.GetMemoryBytes()), gpuHealth(g), gpuState(g), useWord(g.Use, g.Ejected),
			g.LeaseId, host, errorsWord(g.Errors))
	}
	t.flush()
}

func newGetLeasesCommand(conn *connection) *cobra.Command {
	req := &dxpuv1.ListLeasesRequest{}
	cmd := listCommand(conn, &cobra.Command{
		Use: "leases", Aliases: []string{"lease"}, Short: "List leases",
		Long:    "List the leases. Leases that have ended are shown only with --all.",
		Example: "  dxpu get leases --tenant team-a",
	}, poolAPI.ListLeases, req, printLeases)
	cmd.Flags().StringVar(&req.Tenant, "tenant", "", "show only leases of this tenant")
	cmd.Flags().StringVar(&req.HostId, "host", "", "show only leases on this host")
	cmd.Flags().BoolVar(&req.IncludeEnded, "all", false, "show leases that have ended, too")
	return cmd
}

func printLeases(w io.Writer, all *dxpuv1.ListLeasesResponse) {
	t := newTable(w, "LEASE", "TENANT", "STATE", "HOST", "GPUS", "REASON")
	for _, l := range all.Leases {
		t.row(l.Id, l.Spec.Tenant, enumWord(l.State), l.HostId, strings.Join(gpusOf(l), ","), l.StateReason)
	}
	t.flush()
}

// gpusOf returns the GPUs that a lease holds or is about to get.
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
