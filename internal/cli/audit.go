package cli

import (
	"io"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

func newGetAuditCommand(conn *connection) *cobra.Command {
	var form output
	var limit int
	req := &dxpuv1.ListAuditRequest{}
	cmd := &cobra.Command{
		Use: "audit", Short: "List who did what", Args: cobra.NoArgs,
		Long: `List who did what, newest first: every call that changed something, and those
that were refused. With --json the requests are shown too, without their secrets.`,
		Example: `  dxpu get audit --limit 20
  dxpu get audit --actor t-k3v5c7q2mn --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := conn.pool()
			if err != nil {
				return err
			}
			all := &dxpuv1.ListAuditResponse{}
			for {
				req.PageSize = 1000
				if limit > 0 {
					req.PageSize = int32(min(1000, limit-len(all.Entries)))
				}
				res, err := api.ListAudit(cmd.Context(), connect.NewRequest(req))
				if err != nil {
					return err
				}
				all.Entries = append(all.Entries, res.Msg.Entries...)
				if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" || limit > 0 && len(all.Entries) >= limit {
					break
				}
			}
			if form.given() {
				return form.write(cmd.OutOrStdout(), all)
			}
			return printAudit(cmd.OutOrStdout(), all.Entries)
		},
	}
	form.register(cmd)
	f := cmd.Flags()
	f.StringVar(&req.Actor, "actor", "", "only what this token or node did")
	f.StringVar(&req.Target, "target", "", "only what was done to this")
	f.IntVar(&limit, "limit", 100, "how many entries, 0 for all that there are")
	return cmd
}

func printAudit(w io.Writer, entries []*dxpuv1.AuditEntry) error {
	t := newTable(w, "TIME", "ACTOR", "ROLE", "CALL", "TARGET", "RESULT", "FROM")
	for _, e := range entries {
		t.row(e.Time.AsTime().Local().Format(time.DateTime), e.Actor, auth.RoleWord(e.Role),
			e.Procedure[strings.LastIndexByte(e.Procedure, '/')+1:], e.Target, e.Code, e.Peer)
	}
	return t.flush()
}
