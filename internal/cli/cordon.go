package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// parseTarget reads the two words that name something: its kind and its ID.
func parseTarget(args []string) (*dxpuv1.Target, error) {
	switch args[0] {
	case "gpu":
		return &dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: args[1]}}, nil
	case "box":
		return &dxpuv1.Target{Target: &dxpuv1.Target_BoxId{BoxId: args[1]}}, nil
	case "host":
		return &dxpuv1.Target{Target: &dxpuv1.Target_HostId{HostId: args[1]}}, nil
	}
	return nil, &usageError{withHint(fmt.Errorf("%q is no kind of thing", args[0]), "gpu, box or host")}
}

// targetCommand makes a command that does something to a target.
func targetCommand(conn *connection, cmd *cobra.Command, done string,
	do func(*cobra.Command, dxpuv1connect.PoolServiceClient, *dxpuv1.Target) error,
) *cobra.Command {
	var form output
	cmd.Args = cobra.ExactArgs(2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		target, err := parseTarget(args)
		if err != nil {
			return err
		}
		api, err := conn.pool()
		if err != nil {
			return err
		}
		if err := do(cmd, api, target); err != nil {
			return err
		}
		if form.given() {
			m, err := getTarget(cmd.Context(), api, target)
			if err != nil {
				return err
			}
			return form.write(cmd.OutOrStdout(), m)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is %s\n", strings.Join(args, " "), done)
		return err
	}
	form.register(cmd)
	return conn.register(cmd)
}

// getTarget returns what a target is now.
func getTarget(ctx context.Context, api dxpuv1connect.PoolServiceClient, target *dxpuv1.Target) (proto.Message, error) {
	switch t := target.Target.(type) {
	case *dxpuv1.Target_GpuId:
		res, err := api.GetGPU(ctx, connect.NewRequest(&dxpuv1.GetGPURequest{GpuId: t.GpuId}))
		if err != nil {
			return nil, err
		}
		return res.Msg.Gpu, nil
	case *dxpuv1.Target_BoxId:
		res, err := api.GetBox(ctx, connect.NewRequest(&dxpuv1.GetBoxRequest{BoxId: t.BoxId}))
		if err != nil {
			return nil, err
		}
		return res.Msg.Box, nil
	default:
		res, err := api.GetHost(ctx, connect.NewRequest(&dxpuv1.GetHostRequest{HostId: target.GetHostId()}))
		if err != nil {
			return nil, err
		}
		return res.Msg.Host, nil
	}
}

func newCordonCommand(conn *connection) *cobra.Command {
	var reason string
	cmd := targetCommand(conn, &cobra.Command{
		Use: "cordon KIND ID", Short: "Keep new bindings away from a gpu, box or host",
		Long:    "Keep new bindings away from a gpu, box or host. What is attached stays.",
		Example: `  dxpu cordon gpu b1/0 --reason "fan is loud"`,
	}, "cordoned", func(cmd *cobra.Command, api dxpuv1connect.PoolServiceClient, t *dxpuv1.Target) error {
		_, err := api.Cordon(cmd.Context(), connect.NewRequest(&dxpuv1.CordonRequest{Target: t, Reason: reason}))
		return err
	})
	cmd.Flags().StringVar(&reason, "reason", "", "for colleagues")
	return cmd
}

func newUncordonCommand(conn *connection) *cobra.Command {
	return targetCommand(conn, &cobra.Command{
		Use: "uncordon KIND ID", Short: "Let new bindings come again",
		Long:    "Undo cordon: the gpu, box or host takes new bindings again.",
		Example: "  dxpu uncordon box b1",
	}, "uncordoned", func(cmd *cobra.Command, api dxpuv1connect.PoolServiceClient, t *dxpuv1.Target) error {
		_, err := api.Uncordon(cmd.Context(), connect.NewRequest(&dxpuv1.UncordonRequest{Target: t}))
		return err
	})
}

func newDrainCommand(conn *connection) *cobra.Command {
	o := &drainOptions{}
	cmd := &cobra.Command{
		Use: "drain KIND ID", Short: "Cordon, and move what is attached somewhere else",
		Long: `Cordon a gpu, box or host, and move what is attached somewhere else.

The bindings of a gpu or box move to other GPUs that fit their leases, spares
included, one at a time for each lease; GPUs that must sit together move together.
Where nothing fits they stay, and an event says why. With --deadline what is left
then is taken away, and the lease gets the next GPU that fits.

A GPU of a host cannot move to another host: until --deadline leases may end by
themselves. Then those that may wait and are not bound to the host go back into the
queue, and the others end.

"dxpu uncordon" ends a drain at any time.`,
		Example: `  dxpu drain box b1 --reason "new firmware" --wait
  dxpu drain host h1 --deadline 30m`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, conn, args) },
	}
	o.form.register(cmd)
	f := cmd.Flags()
	f.StringVar(&o.reason, "reason", "", "for colleagues")
	f.DurationVar(&o.deadline, "deadline", 0, "take away what is still there after so long (default: never)")
	f.BoolVar(&o.wait, "wait", false, "return when nothing is bound there any more")
	f.DurationVar(&o.timeout, "timeout", time.Hour, "longest --wait; the drain goes on")
	return conn.register(cmd)
}

// drainOptions are the flags of "dxpu drain".
type drainOptions struct {
	form              output
	reason            string
	deadline, timeout time.Duration
	wait              bool
}

func (o *drainOptions) run(cmd *cobra.Command, conn *connection, args []string) error {
	target, err := parseTarget(args)
	if err != nil {
		return err
	}
	api, err := conn.pool()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), o.timeout, errors.New("timeout"))
	defer cancel()
	// The watch stands before the drain begins: its end is not missed.
	var events *connect.ServerStreamForClient[dxpuv1.WatchEventsResponse]
	if o.wait {
		if events, err = api.WatchEvents(ctx, connect.NewRequest(&dxpuv1.WatchEventsRequest{Filter: targetFilter(target)})); err != nil {
			return err
		}
		defer func() { _ = events.Close() }()
	}
	req := &dxpuv1.DrainRequest{Target: target, Reason: o.reason}
	if o.deadline > 0 {
		req.Deadline = durationpb.New(o.deadline)
	}
	res, err := api.Drain(cmd.Context(), connect.NewRequest(req))
	if err != nil {
		return err
	}
	if o.form.given() && !o.wait {
		return o.form.write(cmd.OutOrStdout(), res.Msg)
	}
	if !o.form.given() {
		_, _ = fmt.Fprintf(cmd.OutOrStdout(), "%s is draining of %d bindings\n", strings.Join(args, " "), len(res.Msg.BindingIds))
	}
	if !o.wait {
		return nil
	}
	if err := o.follow(ctx, cmd, events); err != nil {
		return err
	}
	if o.form.given() {
		return o.form.write(cmd.OutOrStdout(), res.Msg)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is drained\n", strings.Join(args, " "))
	return err
}

// follow prints what happens to the target until it is empty.
func (o *drainOptions) follow(ctx context.Context, cmd *cobra.Command, events *connect.ServerStreamForClient[dxpuv1.WatchEventsResponse]) error {
	for events.Receive() {
		e := events.Msg().Event
		switch e.GetType() {
		case dxpuv1.EventType_EVENT_TYPE_DRAINED:
			return nil
		case dxpuv1.EventType_EVENT_TYPE_UNCORDONED:
			return errors.New("the drain was ended by an uncordon: " + e.Message)
		case dxpuv1.EventType_EVENT_TYPE_REPLACEMENT_IMPOSSIBLE, dxpuv1.EventType_EVENT_TYPE_GPU_IN_USE, dxpuv1.EventType_EVENT_TYPE_GPU_TAKEN:
			_, _ = fmt.Fprintln(cmd.ErrOrStderr(), e.Message)
		}
	}
	if err := events.Err(); !outOfTime(ctx, err) {
		return err
	}
	if err := cmd.Context().Err(); err != nil {
		return err
	}
	return withHint(fmt.Errorf("something is still bound there after %s", o.timeout), `"dxpu events --watch" shows what is waited for`)
}

// outOfTime reports whether a watch ended because its time was over. The
// manager knows the time, too, and may end the stream first, without an error.
func outOfTime(ctx context.Context, err error) bool {
	return err == nil || ctx.Err() != nil || connect.CodeOf(err) == connect.CodeDeadlineExceeded
}

// targetFilter selects the events of a target.
func targetFilter(t *dxpuv1.Target) *dxpuv1.EventFilter {
	return &dxpuv1.EventFilter{GpuId: t.GetGpuId(), BoxId: t.GetBoxId(), HostId: t.GetHostId()}
}
