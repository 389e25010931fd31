package cli

import (
	"context"
	"fmt"
	"io"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

func newEventsCommand(conn *connection) *cobra.Command {
	cmd := eventsCommand(conn, "events")
	return conn.register(cmd)
}

func newGetEventsCommand(conn *connection) *cobra.Command {
	return eventsCommand(conn, "events")
}

// eventsCommand is both "dxpu events" and "dxpu get events".
func eventsCommand(conn *connection, use string) *cobra.Command {
	var asJSON, watch bool
	filter := &dxpuv1.EventFilter{}
	cmd := &cobra.Command{
		Use: use, Short: "Show what happened", Args: cobra.NoArgs,
		Long: `Show what happened in the pool, oldest first, and with --watch go on as it
happens. With --json each event is one line.`,
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
			return listEvents(cmd.Context(), api, filter, cmd.OutOrStdout(), asJSON)
		},
	}
	jsonFlag(cmd, &asJSON)
	f := cmd.Flags()
	f.BoolVar(&watch, "watch", false, "go on as it happens, until interrupted")
	f.StringVar(&filter.LeaseId, "lease", "", "only of this lease")
	f.StringVar(&filter.BindingId, "binding", "", "only of this binding")
	f.StringVar(&filter.GpuId, "gpu", "", "only of this GPU")
	f.StringVar(&filter.BoxId, "box", "", "only of this box")
	f.StringVar(&filter.HostId, "host", "", "only of this host")
	return cmd
}

func listEvents(ctx context.Context, api dxpuv1connect.PoolServiceClient, filter *dxpuv1.EventFilter, w io.Writer, asJSON bool) error {
	req := &dxpuv1.ListEventsRequest{Filter: filter, PageSize: 1000}
	for {
		res, err := api.ListEvents(ctx, connect.NewRequest(req))
		if err != nil {
			return err
		}
		for _, e := range res.Msg.Events {
			if err := printEvent(w, e, asJSON); err != nil {
				return err
			}
		}
		if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
			return nil
		}
	}
}

func watchEvents(ctx context.Context, api dxpuv1connect.PoolServiceClient, filter *dxpuv1.EventFilter, w io.Writer, asJSON bool) error {
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
		return nil // interrupted: the way to end it
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
