package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

func newGetCommand(conn *connection) *cobra.Command {
	return conn.register(group("get", "List the contents of the pool",
		`List hosts, boxes, GPUs, leases, maintenance, tenants, events, tokens or the audit log, or
summarise the pool. Names after the kind select objects.

Tables fit the terminal; -o wide prints all columns, uncut. -o name prints one name on
each line, for other commands. Columns have colours on a terminal, unless $NO_COLOR is
set.`,
		`  dxpu get gpus --state free --sort-by model
  dxpu get gpu b1/0 b1/1 -o yaml
  dxpu get leases --watch
  dxpu lease delete $(dxpu get leases --tenant team-a -o name)`,
		newGetPoolCommand(conn), newGetHostsCommand(conn), newGetBoxesCommand(conn), newGetGPUsCommand(conn),
		newGetLeasesCommand(conn), newGetMaintenanceCommand(conn), eventsCommand(conn),
		tenantsCommand(conn, "tenants [TENANT...]", "tenant"), tokensCommand(conn, "tokens [TOKEN...]", "token"), newGetAuditCommand(conn)))
}

func newGetPoolCommand(conn *connection) *cobra.Command {
	return getCommand(conn, &cobra.Command{
		Use: "pool", Short: "Summarise the pool",
		Long:    "Summarise the pool: its nodes, GPUs, spares and leases.",
		Example: "  dxpu get pool",
	}, poolAPI.GetPool, func([]string) *dxpuv1.GetPoolRequest { return &dxpuv1.GetPoolRequest{} }, (*dxpuv1.GetPoolResponse).GetPool, printPool)
}

func printPool(w io.Writer, p *dxpuv1.Pool) {
	printSums(w, p)
	if len(p.Spares) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := newTable(w, "MODEL", "USABLE", "FREE", "SPARES HELD", "WANTED", "LOCAL", "REASON")
	for _, s := range p.Spares {
		t.row(s.Model, s.Usable, s.Free, s.Held, s.Wanted, s.Local, s.Explanation)
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
	if len(p.Managers)+len(p.AbsentManagers) < 2 {
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
	for _, name := range p.AbsentManagers {
		fmt.Fprintf(w, "%-8s %s does not run\n", label, name)
		label = ""
	}
}

func newGetHostsCommand(conn *connection) *cobra.Command {
	req := &dxpuv1.ListHostsRequest{}
	cmd := listCommand(conn, &cobra.Command{
		Use: "hosts [HOST...]", Aliases: []string{"host"}, Short: "List hosts",
		Long:    "List the hosts and how many slots of their virtual switches are in use.",
		Example: "  dxpu get hosts --label zone=a",
	}, poolAPI.ListHosts, req, printHosts, oneOf(poolAPI.GetHost,
		func(name string) *dxpuv1.GetHostRequest { return &dxpuv1.GetHostRequest{HostId: name} }, (*dxpuv1.GetHostResponse).GetHost))
	labelsVar(cmd.Flags(), &req.Labels, "label", "show only hosts with this label, `KEY=VALUE`")
	return cmd
}

func printHosts(w io.Writer, all *dxpuv1.ListHostsResponse) {
	t := newTable(w, "HOST", "STATE", "SLOTS", "USED", "RACK", "ADDRESS", wideColumn("LABELS"), wideColumn("VERSION"))
	for _, h := range all.Hosts {
		used := 0
		for _, s := range h.Slots {
			if s.BindingId != "" {
				used++
			}
		}
		t.row(h.Node.Id, nodeState(h.Node), len(h.Slots), used, h.Node.Rack, addressList(h.Node), labelList(h.Node.Labels), h.Node.Version)
	}
	t.flush()
}

func nodeState(n *dxpuv1.NodeInfo) string {
	s := "lost"
	if n.Connected {
		s = "connected"
	}
	s += withheld(n)
	switch n.MaintenanceState {
	case dxpuv1.MaintenanceState_MAINTENANCE_STATE_DRAINING, dxpuv1.MaintenanceState_MAINTENANCE_STATE_RUNNING:
		s += ",maintenance"
	case dxpuv1.MaintenanceState_MAINTENANCE_STATE_PLANNED, dxpuv1.MaintenanceState_MAINTENANCE_STATE_UNSPECIFIED:
	}
	if n.Unstable {
		s += ",unstable"
	}
	return s
}

// labelList prints labels in the order of their keys.
func labelList(labels map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, k+"="+labels[k])
	}
	return strings.Join(out, ",")
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
		Use: "boxes [BOX...]", Aliases: []string{"box"}, Short: "List GPU boxes",
		Long:    "List the GPU boxes and how many of their GPUs are free.",
		Example: "  dxpu get boxes",
	}, poolAPI.ListBoxes, req, printBoxes, oneOf(poolAPI.GetBox,
		func(name string) *dxpuv1.GetBoxRequest { return &dxpuv1.GetBoxRequest{BoxId: name} }, (*dxpuv1.GetBoxResponse).GetBox))
	labelsVar(cmd.Flags(), &req.Labels, "label", "show only boxes with this label, `KEY=VALUE`")
	return cmd
}

func printBoxes(w io.Writer, all *dxpuv1.ListBoxesResponse) {
	t := newTable(w, "BOX", "KIND", "STATE", "GPUS", "FREE", "RACK", "ADDRESS", wideColumn("LABELS"), wideColumn("VERSION"))
	for _, b := range all.Boxes {
		free := 0
		for _, g := range b.Gpus {
			if g.State == dxpuv1.GPUState_GPU_STATE_FREE {
				free++
			}
		}
		t.row(b.Node.Id, enumWord(b.Kind), nodeState(b.Node), len(b.Gpus), free, b.Node.Rack, addressList(b.Node), labelList(b.Node.Labels), b.Node.Version)
	}
	t.flush()
}

func newGetGPUsCommand(conn *connection) *cobra.Command {
	req := &dxpuv1.ListGPUsRequest{}
	cmd := listCommand(conn, &cobra.Command{
		Use: "gpus [GPU...]", Aliases: []string{"gpu"}, Short: "List GPUs",
		Long:    "List the GPUs of the pool with their health, their state and the lease that holds them.",
		Example: "  dxpu get gpus --model DX100 --state free",
	}, poolAPI.ListGPUs, req, func(w io.Writer, all *dxpuv1.ListGPUsResponse) { printGPUs(w, all.Gpus) }, oneOf(poolAPI.GetGPU,
		func(name string) *dxpuv1.GetGPURequest { return &dxpuv1.GetGPURequest{GpuId: name} }, (*dxpuv1.GetGPUResponse).GetGpu))
	f := cmd.Flags()
	f.StringVar(&req.BoxId, "box", "", "show only GPUs of this box")
	f.StringVar(&req.HostId, "host", "", "show only GPUs attached to this host")
	f.StringVar(&req.LeaseId, "lease", "", "show only GPUs of this lease")
	f.StringVar(&req.Model, "model", "", "show only this model")
	enumVar(f, &req.State, "state", "show only GPUs that are free, bound, shared, releasing or unavailable")
	enumVar(f, &req.Health, "health", "show only GPUs that are ok, degraded, failed or unreachable")
	return cmd
}

func printGPUs(w io.Writer, gpus []*dxpuv1.GPU) {
	t := newTable(w, "GPU", "MODEL", "MEMORY", "HEALTH", "STATE", "USE", "LEASE", "HOST", "ERRORS",
		wideColumn("TENANT"), wideColumn("SERIAL"), wideColumn("NVLINK"), wideColumn("SWITCH"), wideColumn("ROOM"), wideColumn("DETAIL"))
	for _, g := range gpus {
		host := ""
		if g.BindingId != "" {
			host = fmt.Sprintf("%s/%d", g.HostId, g.HostSlot)
		}
		t.row(g.Id, g.Device.GetModel(), bytesCell(g.Device.GetMemoryBytes()), gpuHealth(g), gpuState(g), useWord(g.Use, g.Ejected),
			leasesOn(g), host, errorsWord(g.Errors), g.Tenant, g.Device.GetSerial(), g.Device.GetNvlinkDomain(), g.Device.GetPcieSwitch(), roomWord(g), g.HealthDetail)
	}
	t.flush()
}

func newGetLeasesCommand(conn *connection) *cobra.Command {
	req := &dxpuv1.ListLeasesRequest{}
	cmd := listCommand(conn, &cobra.Command{
		Use: "leases [LEASE...]", Aliases: []string{"lease"}, Short: "List leases",
		Long:    "List the leases. Leases that have ended are shown only with --all.",
		Example: "  dxpu get leases --tenant team-a",
	}, poolAPI.ListLeases, req, printLeases, oneOf(poolAPI.GetLease,
		func(name string) *dxpuv1.GetLeaseRequest { return &dxpuv1.GetLeaseRequest{LeaseId: name} }, (*dxpuv1.GetLeaseResponse).GetLease))
	cmd.RunE = ofTenant(conn, &req.Tenant, cmd.RunE)
	cmd.Flags().StringVar(&req.Tenant, "tenant", "", "show only leases of this tenant")
	cmd.Flags().StringVar(&req.HostId, "host", "", "show only leases on this host")
	cmd.Flags().BoolVar(&req.IncludeEnded, "all", false, "show leases that have ended, too")
	return cmd
}

func printLeases(w io.Writer, all *dxpuv1.ListLeasesResponse) {
	t := newTable(w, "LEASE", "TENANT", "STATE", "HOST", "GPUS", "REASON",
		wideColumn("PART"), wideColumn("NAME"), wideColumn("GANG"), wideColumn("PRIORITY"), wideColumn("CREATED"), wideColumn("EXPIRES"), wideColumn("BY"))
	for _, l := range all.Leases {
		state, host, gpus := enumWord(l.State), l.HostId, gpusOf(l)
		if reserved(l) {
			state, host, gpus = "reserved", l.Reservation.HostId, l.Reservation.GpuIds
		}
		t.row(l.Id, l.Spec.Tenant, state, host, strings.Join(gpus, ","), l.StateReason,
			partWord(l.Spec.Part), l.Spec.Labels[nameLabel], l.Spec.Gang.GetName(), l.Spec.Priority, date(l.CreateTime), date(l.ExpireTime), l.Creator)
	}
	t.flush()
}

// reserved reports whether a lease begins later.
func reserved(l *dxpuv1.Lease) bool { return l.GetReservation() != nil && l.QueuePosition == 0 }

// gpusOf returns the GPUs that a lease holds or is about to get.
func gpusOf(l *dxpuv1.Lease) []string {
	var out []string
	for _, b := range l.GetBindings() {
		if b.FollowsBindingId != "" {
			continue // it is not the lease's yet
		}
		switch b.State {
		case dxpuv1.BindingState_BINDING_STATE_PREPARING, dxpuv1.BindingState_BINDING_STATE_READY, dxpuv1.BindingState_BINDING_STATE_ATTACHED:
			out = append(out, b.GpuId)
		}
	}
	return out
}

func newDescribeCommand(conn *connection) *cobra.Command {
	return conn.register(group("describe", "Show one object in detail",
		"Show everything that the manager knows about a host, a box, a GPU, a lease or a tenant.",
		`  dxpu describe lease l-17
  dxpu describe gpu b1/0 --json`,
		describeCommand(conn, "lease", "LEASE", "l-17", poolAPI.GetLease,
			func(args []string) *dxpuv1.GetLeaseRequest { return &dxpuv1.GetLeaseRequest{LeaseId: args[0]} },
			(*dxpuv1.GetLeaseResponse).GetLease, describeLease),
		describeCommand(conn, "host", "HOST", "h1", poolAPI.GetHost,
			func(args []string) *dxpuv1.GetHostRequest { return &dxpuv1.GetHostRequest{HostId: args[0]} },
			(*dxpuv1.GetHostResponse).GetHost, describeHost),
		describeCommand(conn, "box", "BOX", "b1", poolAPI.GetBox,
			func(args []string) *dxpuv1.GetBoxRequest { return &dxpuv1.GetBoxRequest{BoxId: args[0]} },
			(*dxpuv1.GetBoxResponse).GetBox, describeBox),
		describeCommand(conn, "gpu", "GPU", "b1/0", poolAPI.GetGPU,
			func(args []string) *dxpuv1.GetGPURequest { return &dxpuv1.GetGPURequest{GpuId: args[0]} },
			(*dxpuv1.GetGPUResponse).GetGpu, describeGPU),
		describeCommand(conn, "tenant", "TENANT", "team-a", poolAPI.GetTenant,
			func(args []string) *dxpuv1.GetTenantRequest { return &dxpuv1.GetTenantRequest{TenantId: args[0]} },
			(*dxpuv1.GetTenantResponse).GetTenant, describeTenant)))
}

// describeCommand returns a command that shows one object of a kind.
func describeCommand[Req, Res any, M proto.Message](conn *connection, kind, arg, example string,
	m method[Req, Res], request func(args []string) *Req, object func(*Res) M, text func(io.Writer, M),
) *cobra.Command {
	return getCommand(conn, &cobra.Command{
		Use: kind + " " + arg, Short: "Show a " + kind, Long: "Show everything that the manager knows about a " + kind + ".",
		Example: "  dxpu describe " + kind + " " + example,
	}, m, request, object, text)
}

func describeLease(w io.Writer, l *dxpuv1.Lease) {
	fmt.Fprintf(w, "lease   %s of tenant %s\nstate   %s: %s\nhost    %s\n", l.Id, l.Spec.Tenant, enumWord(l.State), l.StateReason, l.HostId)
	if g := l.Spec.Gang; g != nil {
		fmt.Fprintf(w, "gang    %s, of %d leases\n", g.Name, g.Size)
	}
	if part := partsWord(l.Spec); part != "" {
		fmt.Fprintf(w, "part    %s\n", part)
	}
	if r := l.Reservation; r != nil {
		fmt.Fprintf(w, "begins  %s, until %s, with %s to %s\n", date(l.Spec.StartTime), date(l.ExpireTime), strings.Join(r.GpuIds, ", "), r.HostId)
		if r.Obstacle != "" {
			fmt.Fprintf(w, "        at present %s\n", r.Obstacle)
		}
	}
	if l.ActiveTime != nil {
		fmt.Fprintf(w, "active  after %s\n", duration(l.ActiveTime.AsTime().Sub(l.CreateTime.AsTime())))
	}
	for _, b := range l.GetBindings() {
		why := ""
		if b.Reason != 0 {
			why = " (" + enumWord(b.Reason) + ")"
		}
		if b.Waiting {
			why += ", waiting"
		}
		if b.Detail != "" {
			why += ": " + b.Detail
		}
		fmt.Fprintf(w, "\nbinding %s, epoch %d: GPU %s to %s/%d is %s%s\n", b.Id, b.Epoch, b.GpuId, b.HostId, b.HostSlot,
			enumWord(b.State), why)
		if b.Ejected {
			fmt.Fprintf(w, "        the guest has removed it; \"dxpu gpu replug %s\" plugs it in again\n", b.GpuId)
		}
		if m := b.Migration; m != nil {
			fmt.Fprintf(w, "copy    %s\n", migrationWord(m))
		}
		t := newTable(w, "STEP", "AT", "TOOK", "REPORTED BY")
		served := false // the next step of the manager ends the use of the GPU, and took no such time
		for _, s := range b.Timeline {
			took := duration(s.Duration.AsDuration())
			if s.NodeId == "" {
				if served && s.Name != "attached" {
					took = ""
				}
				served = s.Name == "attached"
			}
			t.row(s.Name, s.Time.AsTime().Local().Format("15:04:05.000"), took, cmp.Or(s.NodeId, "manager"))
		}
		t.flush()
	}
}

func describeNode(w io.Writer, kind string, n *dxpuv1.NodeInfo) {
	fmt.Fprintf(w, "%s    %s, node number %d, version %s\nstate   %s\nhas     revision %d of %d\n", kind, n.Id, n.Number, n.Version,
		nodeState(n), n.AppliedRevision, n.DesiredRevision)
	if n.Cordoned {
		fmt.Fprintf(w, "cordon  %s\n", cmp.Or(n.CordonReason, "-"))
	}
	describeTaints(w, n.Taints)
	if n.LocalPeer != "" {
		fmt.Fprintf(w, "local   GPUs and programs are on one machine, together with %s\n", n.LocalPeer)
	}
	if n.MaintenanceId != "" {
		fmt.Fprintf(w, "maintenance %s is %s\n", n.MaintenanceId, enumWord(n.MaintenanceState))
	}
	for _, a := range n.Addresses {
		fmt.Fprintf(w, "path %d  %s\n", a.Path, a.Address)
	}
}

func describeHost(w io.Writer, h *dxpuv1.Host) {
	describeNode(w, "host", h.Node)
	fmt.Fprintln(w)
	t := newTable(w, "SLOT", "DOMAIN", "GPU", "LEASE", "REPORTED", "USE", "PATHS", "TLPS SENT", "RECEIVED", "RETRANSMITTED")
	for _, s := range h.Slots {
		t.row(s.Slot, s.Domain, s.GpuId, s.LeaseId, enumWord(s.ObservedState), useWord(s.Use, s.Ejected), pathsWord(s.Paths),
			s.Counters.GetTlpsSent(), s.Counters.GetTlpsReceived(), s.Counters.GetDatagramsRetransmitted())
	}
	t.flush()
}

func describeBox(w io.Writer, b *dxpuv1.Box) {
	describeNode(w, "box ", b.Node)
	fmt.Fprintf(w, "kind    %s\n\n", enumWord(b.Kind))
	printGPUs(w, b.Gpus)
}

func describeGPU(w io.Writer, g *dxpuv1.GPU) {
	d := g.Device
	fmt.Fprintf(w, "gpu     %s: %s, %s, serial %s, PCI %04x:%04x\nhealth  %s", g.Id, d.GetModel(), size(d.GetMemoryBytes()),
		d.GetSerial(), d.GetVendorId(), d.GetDeviceId(), gpuHealth(g))
	if g.HealthDetail != "" {
		fmt.Fprintf(w, ": %s", g.HealthDetail)
	}
	fmt.Fprintf(w, "\nstate   %s\n", gpuState(g))
	if g.Cordoned {
		fmt.Fprintf(w, "cordon  %s\n", cmp.Or(g.CordonReason, "-"))
	}
	describeTaints(w, g.Taints)
	if g.LocalHost != "" {
		fmt.Fprintf(w, "local   only leases that name host %s get it: both are on one machine\n", g.LocalHost)
	}
	if g.Movable {
		fmt.Fprintln(w, "moves   live, to a GPU of the same model")
	} else if g.Immovable != "" {
		fmt.Fprintf(w, "moves   not live: %s\n", g.Immovable)
	}
	if g.BindingId != "" {
		c := g.Counters
		fmt.Fprintf(w, `lease   %s of tenant %s, binding %s to %s/%d; the box reports %s
use     %s
link    %d TLPs sent, %d received, %d datagrams retransmitted, %d refused
`, g.LeaseId, g.Tenant, g.BindingId, g.HostId, g.HostSlot, enumWord(g.ObservedState), cmp.Or(useWord(g.Use, g.Ejected), "unknown"),
			c.GetTlpsSent(), c.GetTlpsReceived(), c.GetDatagramsRetransmitted(), c.GetDatagramsRefused())
	}
	describeParts(w, g)
	describeErrors(w, g.Errors)
	describeHistory(w, g.History)
}

func describeTaints(w io.Writer, taints []*dxpuv1.Taint) {
	if len(taints) > 0 {
		fmt.Fprintf(w, "taints  %s\n", taintsWord(taints))
	}
}

// describeHistory shows what happened to a GPU and to its box in the last weeks.
func describeHistory(w io.Writer, history []*dxpuv1.Incident) {
	if len(history) == 0 {
		return
	}
	fmt.Fprintln(w, "\nhistory of 90 days, the newest first")
	t := newTable(w, "FIRST", "LAST", "TIMES", "WHAT")
	for _, i := range history {
		first, last := i.FirstTime.AsTime().Local().Format(time.DateTime), i.LastTime.AsTime().Local().Format(time.DateTime)
		if i.Count == 1 {
			first = "-"
		}
		t.row(first, last, fmt.Sprint(i.Count), i.Message)
	}
	t.flush()
}

// useWord returns whether a guest uses a device.
func useWord(u dxpuv1.Use, ejected bool) string {
	if ejected {
		return "removed by guest"
	}
	return enumWord(u)
}

// errorsWord lists errors with their counts, in the order of the list, which starts
// with the gravest.
func errorsWord(errs []*dxpuv1.DeviceError) string {
	const shown = 3
	var out []string
	for _, e := range errs[:min(len(errs), shown)] {
		out = append(out, fmt.Sprintf("XID %d x%d", e.Code, e.Count))
	}
	if len(errs) > shown {
		out = append(out, "...")
	}
	return strings.Join(out, ", ")
}

// describeErrors lists the errors of a GPU and the action that each calls for.
func describeErrors(w io.Writer, errs []*dxpuv1.DeviceError) {
	if len(errs) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := newTable(w, "ERROR", "COUNT", "LAST", "CALLS FOR", "DESCRIPTION")
	for _, e := range errs {
		t.row(fmt.Sprintf("XID %d", e.Code), e.Count, e.LastTime.AsTime().Local().Format(time.DateTime),
			strings.ReplaceAll(enumWord(e.Action), "-", " "), e.Detail)
	}
	t.flush()
}

// pathsWord lists the health of the paths of a binding.
func pathsWord(paths []*dxpuv1.PathStatus) string {
	var out []string
	for _, p := range paths {
		word := enumWord(p.Health)
		if word == "" {
			word = "unused"
		}
		out = append(out, word)
	}
	return strings.Join(out, ",")
}
