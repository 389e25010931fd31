package cli

import (
	"context"
	"fmt"
	"io"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// eventsCommand is both "dxpu events" and "dxpu get events".
func eventsCommand(conn *connection) *cobra.Command {
	var asJSON, watch bool
	filter := &dxpuv1.EventFilter{}
	cmd := &cobra.Command{
		Use: "events", Short: "Show the events of the pool", Args: cobra.NoArgs,
		Long: `Show the events of the pool, oldest first. With --watch, continue with new events.
With --json each event is one line.`,
		Example: `  dxpu events --lease l-17
  dxpu events --watch --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := conn.pool()
			if err != nil {
				return err
			}
			if watch {
				return watchEvents(cmd.Context(), api, filter, cmd.OutOrStdout(), asJSON)
			}
			req := &dxpuv1.ListEventsRequest{Filter: filter, PageSize: 1000}
			return callPages(cmd.Context(), api, poolAPI.ListEvents, req, func(page *dxpuv1.ListEventsResponse) error {
				for _, e := range page.Events {
					if err := printEvent(cmd.OutOrStdout(), e, asJSON); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	jsonFlag(cmd, &asJSON)
	f := cmd.Flags()
	f.BoolVar(&watch, "watch", false, "continue with new events until interrupted")
	f.StringVar(&filter.LeaseId, "lease", "", "show only events of this lease")
	f.StringVar(&filter.BindingId, "binding", "", "show only events of this binding")
	f.StringVar(&filter.GpuId, "gpu", "", "show only events of this GPU")
	f.StringVar(&filter.BoxId, "box", "", "show only events of this box")
	f.StringVar(&filter.HostId, "host", "", "show only events of this host")
	return cmd
}

func watchEvents(ctx context.Context, api poolAPI, filter *dxpuv1.EventFilter, w io.Writer, asJSON bool) error {
	stream, err := api.WatchEvents(ctx, connect.NewRequest(&dxpuv1.WatchEventsRequest{FromStart: true, Filter: filter}))
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
		if e := stream.Msg().Event; e != nil {
			if err := printEvent(w, e, asJSON); err != nil {
				return err
			}
		}
	}
	if ctx.Err() != nil {
		return nil // an interrupt is the normal end
	}
	return stream.Err()
}

func printEvent(w io.Writer, e *dxpuv1.Event, asJSON bool) error {
	if asJSON {
		return writeLine(w, e)
	}
	took := ""
	if d := e.Duration.AsDuration(); d > 0 {
		took = " (" + duration(d) + ")"
	}
	_, err := fmt.Fprintf(w, "%s  %s%s\n", e.Time.AsTime().Local().Format("15:04:05.000"), e.Message, took)
	return err
}
