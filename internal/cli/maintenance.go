package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

func newMaintenanceCommand(conn *connection) *cobra.Command {
	return conn.register(group("maintenance", "Plan maintenance of boxes, hosts and racks",
		`Plan maintenance of boxes, hosts and racks. "dxpu get maintenance" lists what is planned
and what is going on.`,
		`  dxpu maintenance plan rack r7 --start "2027-03-01 08:00" --for 4h --drain-before 1h
  dxpu get maintenance
  dxpu maintenance end m-3`,
		newMaintenancePlanCommand(conn), newMaintenanceEndCommand(conn)))
}

// maintenanceFlags are the flags of "dxpu maintenance plan".
type maintenanceFlags struct {
	start               time.Time
	in, lasts, drain    time.Duration
	keep                bool
	reason, requestName string
}

func newMaintenancePlanCommand(conn *connection) *cobra.Command {
	o := &maintenanceFlags{}
	cmd := valueCommand(&cobra.Command{
		Use: "plan KIND ID", Short: "Keep a box, a host or a rack free for some time", Args: cobra.ExactArgs(2),
		Long: `Keep a box, a host or a rack free for some time.

Until the maintenance begins, only leases that end before it (--expires) get GPUs and
slots there. When it begins, or --drain-before earlier, the bindings move away as in
"dxpu drain". At the start the bindings that are left end, unless --keep-leases is set.
After --for everything takes leases again by itself. Cordons are independent of this.`,
		Example: `  dxpu maintenance plan box b1 --in 30m --for 2h --reason firmware
  dxpu maintenance plan rack r7 --start "2027-03-01 08:00" --for 4h --drain-before 1h
  dxpu maintenance plan host h1 --for 30m --keep-leases`,
	}, func(cmd *cobra.Command, args []string) (*dxpuv1.Maintenance, error) {
		m, err := o.message(time.Now(), args[0], args[1])
		if err != nil {
			return nil, err
		}
		res, err := call(cmd.Context(), conn, poolAPI.PlanMaintenance, &dxpuv1.PlanMaintenanceRequest{Maintenance: m, RequestId: o.requestName})
		return res.GetMaintenance(), err
	}, printPlanLine)
	f := cmd.Flags()
	timeVar(f, &o.start, "start", "begin at this `time`, as in 2027-03-01T08:00:00Z or \"2027-03-01 08:00\" in the local zone, or +2h from now (default: now)")
	durationVar(f, &o.in, "in", 0, "begin after this time")
	positiveDurationVar(f, &o.lasts, "for", 0, "how long it takes")
	durationVar(f, &o.drain, "drain-before", 0, "begin to move bindings away this long before the start")
	f.BoolVar(&o.keep, "keep-leases", false, "let bindings stay for which no other GPU fits")
	f.StringVar(&o.reason, "reason", "", "note for other operators")
	f.StringVar(&o.requestName, "request-id", "", "name of the request, which makes the command safe to repeat")
	_ = cmd.MarkFlagRequired("for") // it exists
	cmd.MarkFlagsMutuallyExclusive("start", "in")
	return cmd
}

// message returns the maintenance that the flags describe.
func (o *maintenanceFlags) message(now time.Time, kind, id string) (*dxpuv1.Maintenance, error) {
	m := &dxpuv1.Maintenance{KeepLeases: o.keep, Reason: o.reason}
	switch kind {
	case "box", "boxes":
		m.Target = &dxpuv1.Maintenance_BoxId{BoxId: id}
	case "host", "hosts":
		m.Target = &dxpuv1.Maintenance_HostId{HostId: id}
	case "rack", "racks":
		m.Target = &dxpuv1.Maintenance_Rack{Rack: id}
	default:
		hint := "a kind is box, host or rack"
		if near := nearest(kind, []string{"box", "host", "rack"}); near != "" {
			hint = fmt.Sprintf("did you mean %q? A kind is box, host or rack", near)
		}
		return nil, usage(withHint(fmt.Errorf("unknown kind %q", kind), "%s", hint))
	}
	start := now.Add(o.in)
	if !o.start.IsZero() {
		start = o.start
	}
	m.StartTime, m.EndTime = timestamppb.New(start), timestamppb.New(start.Add(o.lasts))
	if o.drain != 0 {
		m.DrainBefore = durationpb.New(o.drain)
	}
	return m, nil
}

// printPlanLine prints new maintenance on one line.
func printPlanLine(w io.Writer, m *dxpuv1.Maintenance) {
	fmt.Fprintf(w, "%s of %s is planned from %s to %s", m.Id, maintenanceTarget(m), date(m.StartTime), date(m.EndTime))
	if before := m.DrainBefore.AsDuration(); before > 0 {
		at := "at once"
		if t := m.StartTime.AsTime().Add(-before); t.After(m.CreateTime.AsTime()) {
			at = "from " + date(timestamppb.New(t))
		}
		fmt.Fprintf(w, ", and bindings move away %s", at)
	}
	if n := len(m.LeaseIds); n > 0 {
		fmt.Fprintf(w, "; leases there now: %s", strings.Join(m.LeaseIds, ", "))
	}
	fmt.Fprintln(w)
}

// maintenanceTarget names the nodes of maintenance.
func maintenanceTarget(m *dxpuv1.Maintenance) string {
	switch t := m.Target.(type) {
	case *dxpuv1.Maintenance_BoxId:
		return "box " + t.BoxId
	case *dxpuv1.Maintenance_HostId:
		return "host " + t.HostId
	}
	return "rack " + m.GetRack()
}

func newMaintenanceEndCommand(conn *connection) *cobra.Command {
	return &cobra.Command{
		Use: "end MAINTENANCE...", Short: "End maintenance before its time, or cancel it", Args: cobra.MinimumNArgs(1),
		Long: `End maintenance before its time, or cancel it. The nodes take leases again, unless they
are cordoned.`,
		Example: "  dxpu maintenance end m-3",
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := conn.pool()
			if err != nil {
				return err
			}
			return each(args, func(id string) error {
				if _, err := callOn(cmd.Context(), api, poolAPI.EndMaintenance, &dxpuv1.EndMaintenanceRequest{MaintenanceId: id}); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is over\n", id)
				return err
			})
		},
	}
}

func newGetMaintenanceCommand(conn *connection) *cobra.Command {
	return listCommand(conn, &cobra.Command{
		Use: "maintenance [MAINTENANCE...]", Short: "List planned and running maintenance",
		Long:    "List the maintenance of boxes, hosts and racks that is planned or going on.",
		Example: "  dxpu get maintenance --watch",
	}, poolAPI.ListMaintenance, &dxpuv1.ListMaintenanceRequest{}, printMaintenance, nil)
}

func printMaintenance(w io.Writer, all *dxpuv1.ListMaintenanceResponse) {
	t := newTable(w, "MAINTENANCE", "OF", "STATE", "START", "END", "LEASES", "REASON", wideColumn("DRAIN BEFORE"), wideColumn("BY"))
	for _, m := range all.Maintenance {
		drain := ""
		if m.DrainBefore != nil {
			drain = duration(m.DrainBefore.AsDuration())
		}
		t.row(m.Id, maintenanceTarget(m), enumWord(m.State), date(m.StartTime), date(m.EndTime), strings.Join(m.LeaseIds, ","), m.Reason, drain, m.Creator)
	}
	t.flush()
}
