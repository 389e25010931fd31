package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

func newLeaseCommand(conn *connection) *cobra.Command {
	return conn.register(group("lease", "Get GPUs and give them back",
		"A lease gives GPUs to a host for as long as it lasts.",
		`  dxpu lease create --count 2 --host h1 --wait
  dxpu lease explain --count 8 --nvlink required
  dxpu lease resize l-17 --count 4
  dxpu lease delete l-17 --wait`,
		newLeaseCreateCommand(conn), newLeaseResizeCommand(conn), newLeaseDeleteCommand(conn), newLeaseExplainCommand(conn)))
}

// leaseFlags are the flags that make up a spec.
type leaseFlags struct {
	spec                       dxpuv1.LeaseSpec
	memory                     string
	kind, nvlink, sameBox      string
	expires, queueFor, waitFor time.Duration
}

func (o *leaseFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Uint32Var(&o.spec.Count, "count", 1, "number of GPUs, all of one model")
	f.StringVar(&o.spec.Model, "model", "", "exact model (default: the least contested)")
	f.StringVar(&o.memory, "memory", "", "least memory of each GPU, like 16GiB")
	f.StringVar(&o.kind, "kind", "", "kind of box: nvlink or pcie-switch")
	f.StringVar(&o.nvlink, "nvlink", "", "GPUs joined by NVLink: preferred or required")
	f.StringVar(&o.sameBox, "same-box", "", "GPUs in one box: preferred, required, or avoid to spread them")
	f.StringVar(&o.spec.HostId, "host", "", "host that gets them (default: one with enough free slots)")
	f.StringToStringVar(&o.spec.HostLabels, "host-label", nil, "only a host with this label, KEY=VALUE")
	f.StringVar(&o.spec.HostDomain, "host-domain", "", "VM or virtual switch of the host")
	f.StringVar(&o.spec.Tenant, "tenant", "", "on whose behalf")
	f.Int32Var(&o.spec.Priority, "priority", 0, "place in the queue, -100 to 100, higher first")
	f.BoolVar(&o.spec.Preemptible, "preemptible", false, "may be taken away for a higher priority")
	f.DurationVar(&o.expires, "expires", 0, "give them back after so long")
}

// message completes the spec.
func (o *leaseFlags) message() (*dxpuv1.LeaseSpec, error) {
	var err error
	s := &o.spec
	if s.MinMemoryBytes, err = parseBytes("--memory", o.memory); err != nil {
		return nil, err
	}
	if s.BoxKind, err = parseEnum[dxpuv1.BoxKind]("--kind", o.kind, "BOX_KIND_", dxpuv1.BoxKind_value); err != nil {
		return nil, err
	}
	if s.Nvlink, err = parseEnum[dxpuv1.Preference]("--nvlink", o.nvlink, "PREFERENCE_", dxpuv1.Preference_value); err != nil {
		return nil, err
	}
	if s.SameBox, err = parseEnum[dxpuv1.Preference]("--same-box", o.sameBox, "PREFERENCE_", dxpuv1.Preference_value); err != nil {
		return nil, err
	}
	if o.expires != 0 {
		s.ExpiresAfter = durationpb.New(o.expires)
	}
	if o.queueFor != 0 {
		s.Wait, s.WaitTimeout = true, durationpb.New(o.queueFor)
	}
	return s, nil
}

// parseBytes reads a size like "16GiB", "512MiB" or a number of bytes.
func parseBytes(flag, s string) (uint64, error) {
	if s == "" {
		return 0, nil
	}
	bad := &usageError{withHint(fmt.Errorf("%s: %q is no size", flag, s), "write it like 16GiB or 512MiB")}
	digits, shift := s, 0
	for unit, sh := range map[string]int{"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40} {
		if d, ok := strings.CutSuffix(s, unit); ok {
			digits, shift = strings.TrimSpace(d), sh
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n > math.MaxUint64>>shift {
		return 0, bad
	}
	return n << shift, nil
}

func newLeaseCreateCommand(conn *connection) *cobra.Command {
	o := &leaseFlags{}
	var form output
	var wait bool
	var requestID string
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Allocate GPUs and attach them to a host",
		Long: `Allocate GPUs and attach them to a host.

The command returns when the GPUs are chosen, with --wait when every one is
attached and the guest can use it. Without capacity it fails, unless --queue says
to wait for it.

With --request-id the command can be repeated safely: the same ID gives the same lease.`,
		Example: `  dxpu lease create --count 2 --model DX100 --host h1 --wait
  dxpu lease create --count 8 --nvlink required --queue --queue-timeout 10m`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			spec, err := o.message()
			if err != nil {
				return err
			}
			api, err := conn.pool()
			if err != nil {
				return err
			}
			res, err := api.CreateLease(cmd.Context(), connect.NewRequest(&dxpuv1.CreateLeaseRequest{RequestId: requestID, Spec: spec}))
			if err != nil {
				return err
			}
			l := res.Msg.Lease
			if wait {
				if l, err = waitForLease(cmd.Context(), api, l.Id, o.waitFor, dxpuv1.LeaseState_LEASE_STATE_ACTIVE); err != nil {
					return err
				}
			}
			if form.given() {
				return form.write(cmd.OutOrStdout(), l)
			}
			return printLeaseLine(cmd, l)
		},
	}
	form.register(cmd)
	f := cmd.Flags()
	o.register(cmd)
	f.StringVar(&requestID, "request-id", "", "makes the command safe to repeat")
	f.BoolVar(&o.spec.Wait, "queue", false, "wait in the queue when there is no capacity")
	f.DurationVar(&o.queueFor, "queue-timeout", 0, "leave the queue after so long (implies --queue)")
	f.BoolVar(&wait, "wait", false, "return when every GPU is attached")
	f.DurationVar(&o.waitFor, "timeout", time.Minute, "longest --wait; the lease stays")
	return cmd
}

// printLeaseLine says in one line where a lease is.
func printLeaseLine(cmd *cobra.Command, l *dxpuv1.Lease) error {
	where := ""
	if g := gpusOf(l); len(g) > 0 {
		where = fmt.Sprintf(": %s to %s", strings.Join(g, ", "), l.HostId)
	}
	took := ""
	if l.State == dxpuv1.LeaseState_LEASE_STATE_ACTIVE {
		took = " after " + duration(l.ActiveTime.AsTime().Sub(l.CreateTime.AsTime()))
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is %s%s%s\n", l.Id, enumWord(l.State, "LEASE_STATE_"), took, where)
	return err
}

// waitForLease returns the lease once it is in a state, and an error when it
// ends in another one.
func waitForLease(ctx context.Context, api dxpuv1connect.PoolServiceClient, id string, limit time.Duration, want ...dxpuv1.LeaseState) (*dxpuv1.Lease, error) {
	return waitForLeaseUntil(ctx, api, id, limit, func(l *dxpuv1.Lease) bool { return slices.Contains(want, l.State) })
}

// waitForLeaseUntil returns the lease once it is as it should be, and an error
// when it ends before.
func waitForLeaseUntil(outer context.Context, api dxpuv1connect.PoolServiceClient, id string, limit time.Duration, done func(*dxpuv1.Lease) bool) (*dxpuv1.Lease, error) {
	ctx, cancel := context.WithTimeoutCause(outer, limit, errors.New("timeout"))
	defer cancel()
	// The watch stands before the lease is read: no change is missed between.
	stream, err := api.WatchEvents(ctx, connect.NewRequest(&dxpuv1.WatchEventsRequest{Filter: &dxpuv1.EventFilter{LeaseId: id}}))
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
		res, err := api.GetLease(ctx, connect.NewRequest(&dxpuv1.GetLeaseRequest{LeaseId: id}))
		if err != nil {
			return nil, err
		}
		l := res.Msg.Lease
		switch {
		case done(l):
			return l, nil
		case l.State == dxpuv1.LeaseState_LEASE_STATE_FAILED || l.State == dxpuv1.LeaseState_LEASE_STATE_RELEASED:
			return nil, withHint(fmt.Errorf("lease %s is %s: %s", id, enumWord(l.State, "LEASE_STATE_"), l.StateReason),
				"dxpu describe lease %s", id)
		}
	}
	if err := stream.Err(); !outOfTime(ctx, err) {
		return nil, err
	}
	if err := outer.Err(); err != nil {
		return nil, err
	}
	return nil, withHint(fmt.Errorf("lease %s did not get there within %s", id, limit), "dxpu lease explain %s", id)
}

func newLeaseDeleteCommand(conn *connection) *cobra.Command {
	var form output
	var wait bool
	var timeout time.Duration
	req := &dxpuv1.DeleteLeaseRequest{}
	cmd := &cobra.Command{
		Use:   "delete LEASE",
		Short: "Detach the GPUs of a lease and give them back",
		Long: `Detach the GPUs of a lease and give them back: the guest is asked to let go,
then the GPU is reset and its memory scrubbed. --force does not ask the guest.`,
		Example: "  dxpu lease delete l-17 --wait",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := conn.pool()
			if err != nil {
				return err
			}
			req.LeaseId = args[0]
			res, err := api.DeleteLease(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			l := res.Msg.Lease
			if wait {
				l, err = waitForLease(cmd.Context(), api, l.Id, timeout,
					dxpuv1.LeaseState_LEASE_STATE_RELEASED, dxpuv1.LeaseState_LEASE_STATE_FAILED)
				if err != nil {
					return err
				}
			}
			if form.given() {
				return form.write(cmd.OutOrStdout(), l)
			}
			return printLeaseLine(cmd, l)
		},
	}
	form.register(cmd)
	cmd.Flags().BoolVar(&req.Force, "force", false, "surprise removal, without the guest's consent")
	cmd.Flags().BoolVar(&wait, "wait", false, "return when everything is given back")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "longest --wait")
	return cmd
}

func newLeaseExplainCommand(conn *connection) *cobra.Command {
	o := &leaseFlags{}
	var form output
	cmd := &cobra.Command{
		Use:   "explain [LEASE]",
		Short: "Say why a lease went where it went, or why it waits",
		Long: `Say in words why a lease went where it went, or why it waits. Without a lease,
say what would happen to the request that the flags describe; nothing is allocated.`,
		Example: `  dxpu lease explain l-17
  dxpu lease explain --count 4 --same-box required`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &dxpuv1.ExplainLeaseRequest{}
			if len(args) == 1 {
				req.What = &dxpuv1.ExplainLeaseRequest_LeaseId{LeaseId: args[0]}
			} else {
				spec, err := o.message()
				if err != nil {
					return err
				}
				req.What = &dxpuv1.ExplainLeaseRequest_Spec{Spec: spec}
			}
			api, err := conn.pool()
			if err != nil {
				return err
			}
			res, err := api.ExplainLease(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if form.given() {
				return form.write(cmd.OutOrStdout(), res.Msg)
			}
			for _, s := range res.Msg.Explanation {
				_, _ = fmt.Fprintln(cmd.OutOrStdout(), s)
			}
			if res.Msg.Satisfied {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "=> %s to %s\n", strings.Join(res.Msg.GpuIds, ", "), res.Msg.HostId)
			} else {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), "=> not now")
			}
			return err
		},
	}
	form.register(cmd)
	o.register(cmd)
	return cmd
}
