package cli

import (
	"errors"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

func newGetAuditCommand(conn *connection) *cobra.Command {
	var limit int
	req := &dxpuv1.ListAuditRequest{}
	cmd := &cobra.Command{
		Use: "audit", Short: "List the calls that changed the pool, and their callers", Args: cobra.NoArgs,
		Long: `List the audit log, newest entry first: every call that changed something, and
every call that was refused. --json shows the requests, too, without their secrets.`,
		Example: `  dxpu get audit --limit 20
  dxpu get audit --actor t-k3v5c7q2mn --json`,
	}
	valueCommand(cmd, func(cmd *cobra.Command, _ []string) (*dxpuv1.ListAuditResponse, error) {
		api, err := conn.pool()
		if err != nil {
			return nil, err
		}
		all := &dxpuv1.ListAuditResponse{}
		enough := errors.New("enough")
		req.PageSize = 1000
		if limit > 0 {
			req.PageSize = int32(min(1000, limit))
		}
		err = callPages(cmd.Context(), api, poolAPI.ListAudit, req, func(page *dxpuv1.ListAuditResponse) error {
			all.Entries = append(all.Entries, page.Entries...)
			if limit > 0 && len(all.Entries) >= limit {
				all.Entries = all.Entries[:limit]
				return enough
			}
			return nil
		})
		if errors.Is(err, enough) {
			err = nil
		}
		return all, err
	}, printAudit)
	f := cmd.Flags()
	f.StringVar(&req.Actor, "actor", "", "show only calls by this token or node")
	f.StringVar(&req.Target, "target", "", "show only calls that concern this object")
	f.IntVar(&limit, "limit", 100, "number of entries, 0 for all")
	return cmd
}

func printAudit(w io.Writer, all *dxpuv1.ListAuditResponse) {
	t := newTable(w, "TIME", "ACTOR", "ROLE", "CALL", "TARGET", "RESULT", "FROM")
	for _, e := range all.Entries {
		t.row(e.Time.AsTime().Local().Format(time.DateTime), e.Actor, auth.RoleWord(e.Role),
			e.Procedure[strings.LastIndexByte(e.Procedure, '/')+1:], e.Target, e.Code, e.Peer)
	}
	t.flush()
}
