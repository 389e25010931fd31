package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// parseTarget reads the arguments KIND ID.
func parseTarget(kind, id string) (*dxpuv1.Target, error) {
	if id == "" {
		return nil, usagef("the ID of the %s is empty", kind)
	}
	switch kind {
	case "gpu", "gpus":
		return &dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: id}}, nil
	case "box", "boxes":
		return &dxpuv1.Target{Target: &dxpuv1.Target_BoxId{BoxId: id}}, nil
	case "host", "hosts":
		return &dxpuv1.Target{Target: &dxpuv1.Target_HostId{HostId: id}}, nil
	}
	hint := "a kind is gpu, box or host"
	if near := nearest(kind, []string{"gpu", "box", "host"}); near != "" {
		hint = fmt.Sprintf("did you mean %q? A kind is gpu, box or host", near)
	}
	return nil, usage(withHint(fmt.Errorf("unknown kind %q", kind), "%s", hint))
}

// targetCommand completes a command that changes a target. change returns the words that say
// what became of it.
func targetCommand(conn *connection, cmd *cobra.Command, change func(context.Context, poolAPI, *dxpuv1.Target) (string, error)) *cobra.Command {
	out := jsonFlag(cmd)
	cmd.Args = cobra.MinimumNArgs(2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if _, err := parseTarget(args[0], args[1]); err != nil {
			return err
		}
		api, err := conn.pool()
		if err != nil {
			return err
		}
		return each(args[1:], func(id string) error {
			target, err := parseTarget(args[0], id)
			if err != nil {
				return err
			}
			done, err := change(cmd.Context(), api, target)
			if err != nil {
				return err
			}
			if out.structured() {
				m, err := getTarget(cmd.Context(), api, target)
				if err != nil {
					return err
				}
				return writeJSON(cmd.OutOrStdout(), m)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", targetName(target), done)
			return err
		})
	}
	return conn.register(cmd)
}

// targetName returns the kind and the ID of a target.
func targetName(target *dxpuv1.Target) string {
	switch t := target.Target.(type) {
	case *dxpuv1.Target_GpuId:
		return "gpu " + t.GpuId
	case *dxpuv1.Target_BoxId:
		return "box " + t.BoxId
	default:
		return "host " + target.GetHostId()
	}
}

// getTarget returns the present state of a target.
func getTarget(ctx context.Context, api poolAPI, target *dxpuv1.Target) (proto.Message, error) {
	switch t := target.Target.(type) {
	case *dxpuv1.Target_GpuId:
		res, err := callOn(ctx, api, poolAPI.GetGPU, &dxpuv1.GetGPURequest{GpuId: t.GpuId})
		return res.GetGpu(), err
	case *dxpuv1.Target_BoxId:
		res, err := callOn(ctx, api, poolAPI.GetBox, &dxpuv1.GetBoxRequest{BoxId: t.BoxId})
		return res.GetBox(), err
	default:
		res, err := callOn(ctx, api, poolAPI.GetHost, &dxpuv1.GetHostRequest{HostId: target.GetHostId()})
		return res.GetHost(), err
	}
}

func newCordonCommand(conn *connection) *cobra.Command {
	var reason string
	cmd := targetCommand(conn, &cobra.Command{
		Use: "cordon KIND ID...", Short: "Keep new bindings away from gpus, boxes or hosts",
		Long:    "Keep new bindings away from gpus, boxes or hosts. Existing bindings continue.",
		Example: `  dxpu cordon gpu b1/0 --reason "fan is loud"`,
	}, func(ctx context.Context, api poolAPI, t *dxpuv1.Target) (string, error) {
		_, err := callOn(ctx, api, poolAPI.Cordon, &dxpuv1.CordonRequest{Target: t, Reason: reason})
		return "is cordoned", err
	})
	cmd.Flags().StringVar(&reason, "reason", "", "note for other operators")
	return cmd
}

func newUncordonCommand(conn *connection) *cobra.Command {
	return targetCommand(conn, &cobra.Command{
		Use: "uncordon KIND ID...", Short: "Allow new bindings again",
		Long:    "Undo cordon: allow new bindings of gpus, boxes or hosts again.",
		Example: "  dxpu uncordon box b1",
	}, uncordon)
}

// uncordon removes the cordon of a target. A GPU of a box that is cordoned stays so.
func uncordon(ctx context.Context, api poolAPI, t *dxpuv1.Target) (string, error) {
	before, err := getTarget(ctx, api, t)
	if err != nil {
		return "", err
	}
	if _, err := callOn(ctx, api, poolAPI.Uncordon, &dxpuv1.UncordonRequest{Target: t}); err != nil || !cordoned(before) {
		return "was not cordoned", err
	}
	after, err := getTarget(ctx, api, t)
	if gpu, ok := after.(*dxpuv1.GPU); ok && gpu.GetCordoned() {
		return fmt.Sprintf("stays cordoned, as a part of box %s (dxpu uncordon box %s)", gpu.BoxId, gpu.BoxId), err
	}
	return "is uncordoned", err
}

// cordoned reports whether a target takes no new bindings, itself or with its box.
func cordoned(target proto.Message) bool {
	if gpu, ok := target.(*dxpuv1.GPU); ok {
		return gpu.GetCordoned()
	}
	return target.(interface{ GetNode() *dxpuv1.NodeInfo }).GetNode().GetCordoned()
}

func newDrainCommand(conn *connection) *cobra.Command {
	o := &drainOptions{}
	cmd := &cobra.Command{
		Use: "drain KIND ID", Short: "Cordon a gpu, box or host and move its bindings elsewhere",
		Long: `Cordon a gpu, box or host, and move its bindings elsewhere.

The bindings of a gpu or box move to other GPUs that meet the constraints of their
leases, spares included: one binding of a lease at a time, except that GPUs which
must share a box move together. A binding for which no GPU fits stays, and an event
gives the reason. With --deadline, the bindings that are left at that time end, and
their leases get the next GPU that fits.

With --live the bindings move by live migration ("dxpu lease migrate"), so that their
guests go on. A binding that cannot move live stays until --deadline, and an event gives
the reason.

A binding cannot move to another host. The leases of a host can end normally until
--deadline. Then leases that are allowed to wait and do not require this host return
to the queue, and the others end.

"dxpu uncordon" stops a drain at any time.`,
		Example: `  dxpu drain box b1 --reason "new firmware" --wait
  dxpu drain box b1 --live --deadline 4h
  dxpu drain host h1 --deadline 30m`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, conn, args) },
	}
	o.out = jsonFlag(cmd)
	f := cmd.Flags()
	f.StringVar(&o.reason, "reason", "", "note for other operators")
	durationVar(f, &o.deadline, "deadline", 0, "end the bindings that are left after this time (default: never)")
	f.BoolVar(&o.live, "live", false, "move bindings while their guests go on, and in no other way before --deadline")
	f.BoolVar(&o.wait, "wait", false, "return when no binding is left")
	positiveDurationVar(f, &o.timeout, "timeout", time.Hour, "longest --wait; afterwards the drain continues without the command")
	return conn.register(cmd)
}

// drainOptions are the flags of "dxpu drain".
type drainOptions struct {
	reason            string
	deadline, timeout time.Duration
	wait, live        bool
	out               *output
}

func (o *drainOptions) run(cmd *cobra.Command, conn *connection, args []string) error {
	target, err := parseTarget(args[0], args[1])
	if err != nil {
		return err
	}
	if err := checkWait(cmd, o.wait); err != nil {
		return err
	}
	api, err := conn.pool()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), o.timeout, errTimeout)
	defer cancel()
	// The watch is open before the drain begins, so that its end is not missed.
	var events *eventWatch
	if o.wait {
		events, err = openWatch(ctx, api, conn.says, &dxpuv1.WatchEventsRequest{Filter: targetFilter(target)})
		switch {
		case err != nil && timedOut(ctx, err) && cmd.Context().Err() == nil:
			return fmt.Errorf("%w: the manager did not answer within %s, and the drain has not begun", errTimeout, o.timeout)
		case err != nil:
			return err
		}
		defer events.close()
	}
	req := &dxpuv1.DrainRequest{Target: target, Reason: o.reason, Live: o.live}
	if o.deadline > 0 {
		req.Deadline = durationpb.New(o.deadline)
	}
	res, err := callOn(cmd.Context(), api, poolAPI.Drain, req)
	if err != nil {
		return err
	}
	name := targetName(target)
	if !o.out.structured() {
		fmt.Fprintf(cmd.OutOrStdout(), "%s is draining: %s left\n", name, bindingsAre(len(res.BindingIds)))
	}
	if o.wait {
		if err := o.follow(ctx, cmd, events); err != nil {
			return err
		}
	}
	return printValue(cmd, o.out, res, func(w io.Writer, _ *dxpuv1.DrainResponse) {
		if o.wait {
			fmt.Fprintf(w, "%s is drained\n", name)
		}
	})
}

// follow prints the obstacles of a drain until the target has no bindings.
func (o *drainOptions) follow(ctx context.Context, cmd *cobra.Command, events *eventWatch) error {
	err := events.follow(ctx, func(e *dxpuv1.Event) error {
		switch e.GetType() {
		case dxpuv1.EventType_EVENT_TYPE_DRAINED:
			return errWatched
		case dxpuv1.EventType_EVENT_TYPE_UNCORDONED:
			return errors.New("an uncordon stopped the drain: " + e.Message)
		case dxpuv1.EventType_EVENT_TYPE_REPLACEMENT_IMPOSSIBLE, dxpuv1.EventType_EVENT_TYPE_GPU_IN_USE, dxpuv1.EventType_EVENT_TYPE_GPU_TAKEN,
			dxpuv1.EventType_EVENT_TYPE_MIGRATION_FAILED:
			fmt.Fprintln(cmd.ErrOrStderr(), oneLine(e.Message))
		}
		return nil
	})
	if err == nil || !timedOut(ctx, err) {
		return err
	}
	if err := cmd.Context().Err(); err != nil {
		return err
	}
	return events.says.timeout(o.timeout, withHint(fmt.Errorf("%w: bindings are left after %s, and the drain continues", errTimeout, o.timeout),
		`"dxpu events --watch" shows what the drain waits for`))
}

// timedOut reports whether a watch ended because of its deadline, which the manager
// knows, too.
func timedOut(ctx context.Context, err error) bool {
	return ctx.Err() != nil || connect.CodeOf(err) == connect.CodeDeadlineExceeded
}

// targetFilter selects the events of a target.
func targetFilter(t *dxpuv1.Target) *dxpuv1.EventFilter {
	return &dxpuv1.EventFilter{GpuId: t.GetGpuId(), BoxId: t.GetBoxId(), HostId: t.GetHostId()}
}

// bindingsAre returns "1 binding is" or "2 bindings are".
func bindingsAre(n int) string {
	if n == 1 {
		return "1 binding is"
	}
	return fmt.Sprintf("%d bindings are", n)
}
