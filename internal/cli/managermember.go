//go:build linux

package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

func newReplaceMemberCommand() *cobra.Command {
	conn := &connection{}
	req := &dxpuv1.ReplaceMemberRequest{}
	cmd := valueCommand(&cobra.Command{
		Use: "replace-member NAME", Short: "Replace one of three managers whose disk is lost", Args: cobra.ExactArgs(1),
		Long: `Replace one of three managers (--etcd-initial-cluster) whose disk or machine is lost.
NAME is its --etcd-name. The others forget the lost manager and expect a new one, and
the pool continues meanwhile. The command prints the flags with which to start the new
manager, with an empty --data-dir. It gets the state from the others.

The lost manager must not run, and the others must. If it runs on another machine from
now on, give --peer-url. The command may be repeated.`,
		Example: `  dxpu manager replace-member m3
  dxpu manager replace-member m3 --peer-url http://10.0.0.4:2380`,
	}, func(cmd *cobra.Command, args []string) (*dxpuv1.ReplaceMemberResponse, error) {
		if req.Name = args[0]; req.Name == "" {
			return nil, usagef("the NAME of the manager is empty")
		}
		return call(cmd.Context(), conn, poolAPI.ReplaceMember, req)
	}, func(w io.Writer, r *dxpuv1.ReplaceMemberResponse) {
		fmt.Fprintf(w, "%s can be replaced. Start the new manager with an empty --data-dir, the join token of the others, and\n  --etcd-name %s --etcd-join --etcd-initial-cluster %s\n",
			req.Name, req.Name, r.InitialCluster)
	})
	cmd.Flags().StringVar(&req.PeerUrl, "peer-url", "", "`URL` at which the others reach the new manager (default: that of the old one)")
	return conn.register(cmd)
}
