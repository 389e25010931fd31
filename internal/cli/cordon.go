package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// parseTarget reads the arguments KIND ID.
func parseTarget(args []string) (*dxpuv1.Target, error) {
	switch args[0] {
	case "gpu":
		return &dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: args[1]}}, nil
	case "box":
		return &dxpuv1.Target{Target: &dxpuv1.Target_BoxId{BoxId: args[1]}}, nil
	case "host":
		return &dxpuv1.Target{Target: &dxpuv1.Target_HostId{HostId: args[1]}}, nil
	}
	return nil, usage(withHint(fmt.Errorf("unknown kind %q", args[0]), "gpu, box or host"))
}

// targetCommand completes a command that changes a target.
func targetCommand[Req, Res any](
	conn *connection, cmd *cobra.Command, done string, m method[Req, Res], request func(*dxpuv1.Target) *Req,
) *cobra.Command {
	var asJSON bool
	jsonFlag(cmd, &asJSON)
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
		if _, err := callOn(cmd.Context(), api, m, request(target)); err != nil {
			return err
		}
		if asJSON {
			m, err := getTarget(cmd.Context(), api, target)
			if err != nil {
				return err
			}
			return writeJSON(cmd.OutOrStdout(), m)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is %s\n", strings.Join(args, " "), done)
		return err
	}
	return conn.register(cmd)
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
		Use: "cordon KIND ID", Short: "Keep new bindings away from a gpu, box or host",
		Long:    "Keep new bindings away from a gpu, box or host. Existing bindings continue.",
		Example: `  dxpu cordon gpu b1/0 --reason "fan is loud"`,
	}, "cordoned", poolAPI.Cordon, func(t *dxpuv1.Target) *dxpuv1.CordonRequest { return &dxpuv1.CordonRequest{Target: t, Reason: reason} })
	cmd.Flags().StringVar(&reason, "reason", "", "note for other operators")
	return cmd
}

func newUncordonCommand(conn *connection) *cobra.Command {
	return targetCommand(conn, &cobra.Command{
		Use: "uncordon KIND ID", Short: "Allow new bindings again",
		Long:    "Undo cordon: allow new bindings of the gpu, box or host again.",
		Example: "  dxpu uncordon box b1",
	}, "uncordoned", poolAPI.Uncordon, func(t *dxpuv1.Target) *dxpuv1.UncordonRequest { return &dxpuv1.UncordonRequest{Target: t} })
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

A binding cannot move to another host. The leases of a host can end normally until
--deadline. Then leases that are allowed to wait and do not require this host return
to the queue, and the others end.

"dxpu uncordon" stops a drain at any time.`,
		Example: `  dxpu drain box b1 --reason "new firmware" --wait
  dxpu drain host h1 --deadline 30m`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, conn, args) },
	}
	jsonFlag(cmd, &o.json)
	f := cmd.Flags()
	f.StringVar(&o.reason, "reason", "", "note for other operators")
	f.DurationVar(&o.deadline, "deadline", 0, "end the bindings that are left after this time (default: never)")
	f.BoolVar(&o.wait, "wait", false, "return when no binding is left")
	f.DurationVar(&o.timeout, "timeout", time.Hour, "longest --wait; afterwards the drain continues without the command")
	return conn.register(cmd)
}

// drainOptions are the flags of "dxpu drain".
type drainOptions struct {
	reason            string
	deadline, timeout time.Duration
	wait, json        bool
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
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), o.timeout, errTimeout)
	defer cancel()
	// The watch is open before the drain begins, so that its end is not missed.
	var events *eventWatch
	if o.wait {
		if events, err = openWatch(ctx, api, &dxpuv1.WatchEventsRequest{Filter: targetFilter(target)}); err != nil {
			return err
		}
		defer events.close()
	}
	req := &dxpuv1.DrainRequest{Target: target, Reason: o.reason}
	if o.deadline > 0 {
		req.Deadline = durationpb.New(o.deadline)
	}
	res, err := callOn(cmd.Context(), api, poolAPI.Drain, req)
	if err != nil {
		return err
	}
	name, out := strings.Join(args, " "), cmd.OutOrStdout()
	if !o.json {
		fmt.Fprintf(out, "%s is draining: %d bindings are left\n", name, len(res.BindingIds))
	}
	if o.wait {
		if err := o.follow(ctx, cmd, events); err != nil {
			return err
		}
	}
	return printValue(cmd, o.json, res, func(w io.Writer, _ *dxpuv1.DrainResponse) {
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
		case dxpuv1.EventType_EVENT_TYPE_REPLACEMENT_IMPOSSIBLE, dxpuv1.EventType_EVENT_TYPE_GPU_IN_USE, dxpuv1.EventType_EVENT_TYPE_GPU_TAKEN:
			fmt.Fprintln(cmd.ErrOrStderr(), e.Message)
		}
		return nil
	})
	if err == nil || !timedOut(ctx, err) {
		return err
	}
	if err := cmd.Context().Err(); err != nil {
		return err
	}
	return withHint(fmt.Errorf("%w: bindings are left after %s, and the drain continues", errTimeout, o.timeout), `"dxpu events --watch" shows what the drain waits for`)
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
