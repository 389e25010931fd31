package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// eventsCommand is both "dxpu events" and "dxpu get events".
func eventsCommand(conn *connection) *cobra.Command {
	var watch bool
	var after uint64
	var out *output
	filter := &dxpuv1.EventFilter{}
	cmd := &cobra.Command{
		Use: "events", Short: "Show the events of the pool", Args: cobra.NoArgs,
		Long: `Show the events of the pool, oldest first. With --watch, continue with new events.
With --json each event is one line. A program that copies the events remembers the
revision of the last one and continues with --after, also at another manager.`,
		Example: `  dxpu events --lease l-17
  dxpu events --watch --json --after 4711`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := conn.pool()
			if err != nil {
				return err
			}
			if watch {
				from := &dxpuv1.WatchEventsRequest{FromStart: after == 0, AfterRevision: after, Filter: filter}
				return watchEvents(cmd.Context(), api, conn.says, from, cmd.OutOrStdout(), out.structured())
			}
			req, found := &dxpuv1.ListEventsRequest{Filter: filter, AfterRevision: after, PageSize: 1000}, false
			err = callPages(cmd.Context(), api, poolAPI.ListEvents, req, func(page *dxpuv1.ListEventsResponse) error {
				found = found || len(page.Events) > 0
				for _, e := range page.Events {
					if err := printEvent(cmd.OutOrStdout(), e, out.structured()); err != nil {
						return err
					}
				}
				return nil
			})
			if err == nil && !found && after == 0 { // later ones may be of an object that is gone
				return noEvents(cmd, api, filter)
			}
			return err
		},
	}
	out = jsonFlag(cmd)
	f := cmd.Flags()
	f.BoolVarP(&watch, "watch", "w", false, "continue with new events until interrupted")
	afterFlag(f, &after, "events")
	f.StringVar(&filter.LeaseId, "lease", "", "show only events of this lease")
	f.StringVar(&filter.BindingId, "binding", "", "show only events of this binding")
	f.StringVar(&filter.GpuId, "gpu", "", "show only events of this GPU")
	f.StringVar(&filter.BoxId, "box", "", "show only events of this box")
	f.StringVar(&filter.HostId, "host", "", "show only events of this host")
	return cmd
}

// noEvents refuses a filter for an object that does not exist, and says that an existing one
// has no events.
func noEvents(cmd *cobra.Command, api poolAPI, filter *dxpuv1.EventFilter) error {
	for _, object := range []struct{ kind, id string }{
		{"lease", filter.LeaseId}, {"gpu", filter.GpuId}, {"box", filter.BoxId}, {"host", filter.HostId},
	} {
		if err := objectExists(cmd.Context(), api, object.kind, object.id); err != nil {
			return err
		}
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "the manager keeps no such events")
	return nil
}

// afterFlag adds --after.
func afterFlag(f *pflag.FlagSet, after *uint64, what string) {
	f.Uint64Var(after, "after", 0, "show only "+what+" after this `revision` (default: all that the manager keeps)")
}

func watchEvents(ctx context.Context, api poolAPI, says *notices, from *dxpuv1.WatchEventsRequest, w io.Writer, asJSON bool) error {
	watch, err := openWatch(ctx, api, says, from)
	if err == nil {
		err = watch.follow(ctx, func(e *dxpuv1.Event) error {
			if e == nil {
				return nil
			}
			return printEvent(w, e, asJSON)
		})
	}
	if ctx.Err() != nil {
		return nil // an interrupt is the normal end
	}
	return err
}

func printEvent(w io.Writer, e *dxpuv1.Event, asJSON bool) error {
	if asJSON {
		return writeLine(w, e)
	}
	took := ""
	if d := e.Duration.AsDuration(); d > 0 {
		took = " (" + duration(d) + ")"
	}
	_, err := fmt.Fprintf(w, "%s  %s%s\n", e.Time.AsTime().Local().Format("15:04:05.000"), oneLine(e.Message), took)
	return err
}

func newGetAuditCommand(conn *connection) *cobra.Command {
	var limit int
	req := &dxpuv1.ListAuditRequest{}
	cmd := &cobra.Command{
		Use: "audit", Short: "List the calls that changed the pool, and their callers", Args: cobra.NoArgs,
		Long: `List the audit log, newest entry first: every call that changed something, and
every call that was refused. --json shows the requests, too, without their secrets.
With --after the oldest entry is first: a program that copies the log continues after
the revision of the last entry that it has.`,
		Example: `  dxpu get audit --limit 20
  dxpu get audit --after 4711 --limit 0 --json
  dxpu get audit --actor t-k3v5c7q2mn --json`,
	}
	valueCommand(cmd, func(cmd *cobra.Command, _ []string) (*dxpuv1.ListAuditResponse, error) {
		if limit < 0 {
			return nil, usagef("--limit %d: want 0 or more", limit)
		}
		api, err := conn.pool()
		if err != nil {
			return nil, err
		}
		return listAudit(cmd.Context(), api, req, limit)
	}, printAudit)
	f := cmd.Flags()
	f.StringVar(&req.Actor, "actor", "", "show only calls by this token or node")
	f.StringVar(&req.Target, "target", "", "show only calls that concern this object")
	afterFlag(f, &req.AfterRevision, "entries")
	f.IntVar(&limit, "limit", 100, "number of entries, 0 for all")
	return cmd
}

// listAudit returns at most limit entries of the audit log, or all if limit is 0, and the
// revision after which a program continues.
func listAudit(ctx context.Context, api poolAPI, req *dxpuv1.ListAuditRequest, limit int) (*dxpuv1.ListAuditResponse, error) {
	all := &dxpuv1.ListAuditResponse{}
	enough := errors.New("enough")
	req.PageSize = 1000
	if limit > 0 {
		req.PageSize = int32(min(1000, limit))
	}
	err := callPages(ctx, api, poolAPI.ListAudit, req, func(page *dxpuv1.ListAuditResponse) error {
		// From the newest entry on, later pages lack what was added since the first one.
		if req.AfterRevision != 0 || all.Revision == 0 {
			all.Revision = page.Revision
		}
		all.Entries = append(all.Entries, page.Entries...)
		if limit == 0 || len(all.Entries) < limit {
			return nil
		}
		more := len(all.Entries) > limit || page.NextPageToken != ""
		all.Entries = all.Entries[:limit]
		if req.AfterRevision != 0 && more {
			all.Revision = all.Entries[limit-1].Revision
		}
		return enough
	})
	if errors.Is(err, enough) {
		err = nil
	}
	return all, err
}

func printAudit(w io.Writer, all *dxpuv1.ListAuditResponse) {
	t := newTable(w, "TIME", "ACTOR", "ROLE", "CALL", "TARGET", "RESULT", "FROM")
	for _, e := range all.Entries {
		t.row(e.Time.AsTime().Local().Format(time.DateTime), e.Actor, auth.RoleWord(e.Role),
			e.Procedure[strings.LastIndexByte(e.Procedure, '/')+1:], e.Target, e.Code, e.Peer)
	}
	t.flush()
}
