package cli

import (
	"cmp"
	"fmt"
	"io"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

func newDescribeCommand(conn *connection) *cobra.Command {
	return conn.register(group("describe", "Show everything about one thing",
		"Show everything that the manager knows about a host, a box, a GPU, a lease or a tenant.",
		`  dxpu describe lease l-17
  dxpu describe gpu b1/0 --json`,
		newDescribeLeaseCommand(conn), newDescribeHostCommand(conn), newDescribeBoxCommand(conn), newDescribeGPUCommand(conn),
		newDescribeTenantCommand(conn)))
}

// describer makes a command that shows one thing: get fetches it, text prints it.
func describer[M proto.Message](conn *connection, kind, id, example string,
	get func(*cobra.Command, dxpuv1connect.PoolServiceClient, string) (M, error), text func(io.Writer, M) error,
) *cobra.Command {
	var form output
	cmd := &cobra.Command{
		Use: kind + " " + id, Short: "Show a " + kind, Long: "Show everything that the manager knows about a " + kind + ".",
		Example: "  dxpu describe " + kind + " " + example, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := conn.pool()
			if err != nil {
				return err
			}
			m, err := get(cmd, api, args[0])
			if err != nil {
				return err
			}
			if form.given() {
				return form.write(cmd.OutOrStdout(), m)
			}
			return text(cmd.OutOrStdout(), m)
		},
	}
	form.register(cmd)
	return cmd
}

func newDescribeLeaseCommand(conn *connection) *cobra.Command {
	return describer(conn, "lease", "LEASE", "l-17",
		func(cmd *cobra.Command, api dxpuv1connect.PoolServiceClient, id string) (*dxpuv1.Lease, error) {
			res, err := api.GetLease(cmd.Context(), connect.NewRequest(&dxpuv1.GetLeaseRequest{LeaseId: id}))
			if err != nil {
				return nil, err
			}
			return res.Msg.Lease, nil
		}, describeLease)
}

func describeLease(w io.Writer, l *dxpuv1.Lease) error {
	_, _ = fmt.Fprintf(w, "lease   %s of tenant %s\nstate   %s: %s\nhost    %s\n", l.Id, l.Spec.Tenant,
		enumWord(l.State, "LEASE_STATE_"), l.StateReason, l.HostId)
	if l.ActiveTime != nil {
		_, _ = fmt.Fprintf(w, "active  after %s\n", duration(l.ActiveTime.AsTime().Sub(l.CreateTime.AsTime())))
	}
	for _, b := range l.Bindings {
		why := ""
		if b.Reason != 0 {
			why = " (" + enumWord(b.Reason, "REASON_") + ")"
		}
		if b.Detail != "" {
			why += ": " + b.Detail
		}
		_, _ = fmt.Fprintf(w, "\nbinding %s, epoch %d: GPU %s to %s/%d is %s%s\n", b.Id, b.Epoch, b.GpuId, b.HostId, b.HostSlot,
			enumWord(b.State, "BINDING_STATE_"), why)
		if b.Ejected {
			_, _ = fmt.Fprintf(w, "        the guest has removed it itself; \"dxpu gpu replug %s\" shows it again\n", b.GpuId)
		}
		t := newTable(w, "STEP", "AT", "TOOK", "SAYS")
		for _, s := range b.Timeline {
			by := s.NodeId
			if by == "" {
				by = "manager"
			}
			t.row(s.Name, s.Time.AsTime().Local().Format("15:04:05.000"), duration(s.Duration.AsDuration()), by)
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	return nil
}

func newDescribeHostCommand(conn *connection) *cobra.Command {
	return describer(conn, "host", "HOST", "h1",
		func(cmd *cobra.Command, api dxpuv1connect.PoolServiceClient, id string) (*dxpuv1.Host, error) {
			res, err := api.GetHost(cmd.Context(), connect.NewRequest(&dxpuv1.GetHostRequest{HostId: id}))
			if err != nil {
				return nil, err
			}
			return res.Msg.Host, nil
		}, describeHost)
}

func describeNode(w io.Writer, kind string, n *dxpuv1.NodeInfo) {
	_, _ = fmt.Fprintf(w, "%s    %s, node number %d, version %s\nstate   %s\nhas     revision %d of %d\n", kind, n.Id, n.Number, n.Version,
		nodeState(n), n.AppliedRevision, n.DesiredRevision)
	if n.Cordoned {
		_, _ = fmt.Fprintf(w, "cordon  %s\n", n.CordonReason)
	}
	for _, a := range n.Addresses {
		_, _ = fmt.Fprintf(w, "path %d  %s\n", a.Path, a.Address)
	}
}

func describeHost(w io.Writer, h *dxpuv1.Host) error {
	describeNode(w, "host", h.Node)
	_, _ = fmt.Fprintln(w)
	t := newTable(w, "SLOT", "DOMAIN", "GPU", "LEASE", "REPORTED", "USE", "PATHS", "TLPS SENT", "RECEIVED", "RETRANSMITTED")
	for _, s := range h.Slots {
		t.row(s.Slot, s.Domain, s.GpuId, s.LeaseId, enumWord(s.ObservedState, "BINDING_STATE_"),
			useWord(s.Use, s.Ejected), pathsWord(s.Paths), s.Counters.GetTlpsSent(), s.Counters.GetTlpsReceived(), s.Counters.GetDatagramsRetransmitted())
	}
	return t.flush()
}

func newDescribeBoxCommand(conn *connection) *cobra.Command {
	return describer(conn, "box", "BOX", "b1",
		func(cmd *cobra.Command, api dxpuv1connect.PoolServiceClient, id string) (*dxpuv1.Box, error) {
			res, err := api.GetBox(cmd.Context(), connect.NewRequest(&dxpuv1.GetBoxRequest{BoxId: id}))
			if err != nil {
				return nil, err
			}
			return res.Msg.Box, nil
		},
		func(w io.Writer, b *dxpuv1.Box) error {
			describeNode(w, "box ", b.Node)
			_, _ = fmt.Fprintf(w, "kind    %s\n\n", enumWord(b.Kind, "BOX_KIND_"))
			return printGPUs(w, b.Gpus)
		})
}

func newDescribeGPUCommand(conn *connection) *cobra.Command {
	return describer(conn, "gpu", "GPU", "b1/0",
		func(cmd *cobra.Command, api dxpuv1connect.PoolServiceClient, id string) (*dxpuv1.GPU, error) {
			res, err := api.GetGPU(cmd.Context(), connect.NewRequest(&dxpuv1.GetGPURequest{GpuId: id}))
			if err != nil {
				return nil, err
			}
			return res.Msg.Gpu, nil
		}, describeGPU)
}

func describeGPU(w io.Writer, g *dxpuv1.GPU) error {
	d := g.Device
	_, _ = fmt.Fprintf(w, "gpu     %s: %s, %s, serial %s, PCI %04x:%04x\nhealth  %s", g.Id, d.GetModel(), memory(d.GetMemoryBytes()),
		d.GetSerial(), d.GetVendorId(), d.GetDeviceId(), gpuHealth(g))
	if g.HealthDetail != "" {
		_, _ = fmt.Fprintf(w, ": %s", g.HealthDetail)
	}
	_, _ = fmt.Fprintf(w, "\nstate   %s\n", gpuState(g))
	if g.Cordoned {
		_, _ = fmt.Fprintf(w, "cordon  %s\n", g.CordonReason)
	}
	if g.BindingId != "" {
		c := g.Counters
		_, _ = fmt.Fprintf(w, `lease   %s of tenant %s, binding %s to %s/%d: the box says %s
use     %s
link    %d TLPs sent, %d received, %d datagrams retransmitted, %d refused
`, g.LeaseId, g.Tenant, g.BindingId, g.HostId, g.HostSlot, enumWord(g.ObservedState, "BINDING_STATE_"), cmp.Or(useWord(g.Use, g.Ejected), "not known"),
			c.GetTlpsSent(), c.GetTlpsReceived(), c.GetDatagramsRetransmitted(), c.GetDatagramsRefused())
	}
	return describeErrors(w, g.Errors)
}
