package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// nodeInterval is the time between two looks at nodes that are not connected yet.
const nodeInterval = 100 * time.Millisecond

func newNodeWaitCommand(conn *connection) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "wait NODE...", Short: "Wait until hosts and boxes are connected", Args: cobra.MinimumNArgs(1),
		Long: `Wait until hosts and boxes are connected, and for the manager if it does not answer
yet. The command says on standard error what it waits for.`,
		Example: "  dxpu node wait box-a box-b h1",
		RunE: func(cmd *cobra.Command, args []string) error {
			if slices.Contains(args, "") { // of a variable that is not set
				return usagef("a NODE has no name")
			}
			api, err := conn.pool()
			if err != nil {
				return err
			}
			w := &nodeWait{api: api, out: cmd.ErrOrStderr(), limit: timeout}
			if err := w.run(cmd.Context(), args); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "connected: %s\n", strings.Join(args, ", "))
			return err
		},
	}
	positiveDurationVar(cmd.Flags(), &timeout, "timeout", time.Minute, "longest wait")
	return cmd
}

// nodeWait waits for nodes.
type nodeWait struct {
	api   poolAPI
	out   io.Writer
	limit time.Duration
	last  string // the nodes that were printed last
}

func (w *nodeWait) run(outer context.Context, names []string) error {
	ctx, cancel := context.WithTimeoutCause(outer, w.limit, errTimeout)
	defer cancel()
	tick := time.NewTicker(nodeInterval)
	defer tick.Stop()
	for {
		missing, err := w.missing(ctx, names)
		switch {
		case ctx.Err() != nil:
		case connect.CodeOf(err) == connect.CodeUnavailable:
			missing = "the manager"
		case err != nil:
			return err
		case missing == "":
			return nil
		}
		if missing != w.last && missing != "" {
			w.last = missing
			fmt.Fprintf(w.out, "waiting for %s\n", missing)
		}
		select {
		case <-tick.C:
			continue
		case <-ctx.Done():
		}
		if outer.Err() != nil {
			return errInterrupted
		}
		return withHint(fmt.Errorf("%w: after %s there is no connection to %s", errTimeout, w.limit, cmp.Or(w.last, "the manager")),
			`"dxpu get hosts" and "dxpu get boxes" list the nodes; the log of a node says why it is not connected`)
	}
}

// missing lists the nodes that are not connected.
func (w *nodeWait) missing(ctx context.Context, names []string) (string, error) {
	hosts, err := callAll(ctx, w.api, poolAPI.ListHosts, &dxpuv1.ListHostsRequest{})
	if err != nil {
		return "", err
	}
	boxes, err := callAll(ctx, w.api, poolAPI.ListBoxes, &dxpuv1.ListBoxesRequest{})
	if err != nil {
		return "", err
	}
	connected := map[string]bool{}
	for _, h := range hosts.Hosts {
		connected[h.Node.Id] = h.Node.Connected
	}
	for _, b := range boxes.Boxes {
		connected[b.Node.Id] = b.Node.Connected
	}
	var out []string
	for _, name := range names {
		if !connected[name] {
			out = append(out, name)
		}
	}
	return strings.Join(out, ", "), nil
}
