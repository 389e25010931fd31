package cli

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/plural"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

func newAuthorityCommand(conn *connection) *cobra.Command {
	return conn.register(group("authority", "Show and rotate the pool's certificate authority",
		`Show the certificate authority of a pool with TLS, or replace it by another one while
the pool works. A rotation has three steps:

  rotate     makes another authority. Both are trusted, and nodes renew their certificates.
  activate   lets managers use certificates of the new authority. Both are trusted.
  retire     ends the trust in the old authority.

Between rotate and activate, give the callers that verify the manager by a file or a
hash the new one. Leases and bindings are not affected.`,
		`  dxpu authority rotate --wait
  dxpu authority show --pem >ca.crt
  dxpu authority activate --wait
  dxpu authority retire`,
		newAuthorityShowCommand(conn),
		newAuthorityStepCommand(conn, dxpuv1.AuthorityStep_AUTHORITY_STEP_BEGIN, "rotate", "Make another authority, and let nodes renew their certificates with it"),
		newAuthorityStepCommand(conn, dxpuv1.AuthorityStep_AUTHORITY_STEP_ACTIVATE, "activate", "Let managers use certificates of the new authority"),
		newAuthorityStepCommand(conn, dxpuv1.AuthorityStep_AUTHORITY_STEP_RETIRE, "retire", "End the trust in the old authority")))
}

func newAuthorityShowCommand(conn *connection) *cobra.Command {
	onlyPEM := false
	cmd := valueCommand(&cobra.Command{
		Use: "show", Short: "Show the authority and the progress of its rotation", Args: cobra.NoArgs,
		Long: `Show the hash of the authority that signs the certificates of managers (--ca-hash), and
the progress of a rotation. --pem prints the certificates that a caller has to trust
(--ca-file): two during a rotation.`,
		Example: "  dxpu authority show\n  dxpu authority show --pem >ca.crt",
	}, func(cmd *cobra.Command, _ []string) (*dxpuv1.Authority, error) {
		res, err := call(cmd.Context(), conn, poolAPI.GetAuthority, &dxpuv1.GetAuthorityRequest{})
		return res.GetAuthority(), err
	}, func(w io.Writer, a *dxpuv1.Authority) {
		if onlyPEM {
			fmt.Fprint(w, a.CaPem)
			return
		}
		describeAuthority(w, a)
	})
	cmd.Flags().BoolVar(&onlyPEM, "pem", false, "print the certificates only")
	return cmd
}

func newAuthorityStepCommand(conn *connection, step dxpuv1.AuthorityStep, use, short string) *cobra.Command {
	req := &dxpuv1.RotateAuthorityRequest{Step: step}
	wait := false
	cmd := valueCommand(&cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		Long: short + `. Nodes renew at most 200 a second. The next step is refused while a
node has not renewed; --wait waits for all of them. "dxpu authority --help" lists the
steps.`,
		Example: "  dxpu authority " + use + " --wait",
	}, func(cmd *cobra.Command, _ []string) (*dxpuv1.Authority, error) {
		if step == dxpuv1.AuthorityStep_AUTHORITY_STEP_ACTIVATE && !req.Force {
			if err := checkTrust(cmd.Context(), conn); err != nil {
				return nil, err
			}
		}
		res, err := call(cmd.Context(), conn, poolAPI.RotateAuthority, req)
		if err != nil || !wait {
			return res.GetAuthority(), err
		}
		return awaitRenewals(cmd.Context(), conn, cmd.ErrOrStderr())
	}, describeAuthority)
	f := cmd.Flags()
	f.BoolVar(&wait, "wait", false, "wait until all nodes have renewed their certificates")
	if step != dxpuv1.AuthorityStep_AUTHORITY_STEP_BEGIN {
		f.BoolVar(&req.Force, "force", false, "do not require that all nodes have renewed: those that have not must be enrolled again")
	}
	return cmd
}

// checkTrust refuses to activate an authority that is not in the caller's own file: the
// caller, and probably others with a copy of the file, could not reach a manager then.
func checkTrust(ctx context.Context, conn *connection) error {
	t, err := conn.resolve()
	if err != nil || t.CAFile == "" {
		return err
	}
	raw, err := readAtMost(t.CAFile, maxFlagFile)
	if err != nil {
		return err
	}
	res, err := call(ctx, conn, poolAPI.GetAuthority, &dxpuv1.GetAuthorityRequest{})
	if err != nil || res.Authority.NextHash == "" {
		return err // the manager says that there is nothing to activate
	}
	for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && auth.HashOf(c) == res.Authority.NextHash {
			return nil
		}
	}
	return withHint(fmt.Errorf("%s has only the old authority: this command could not reach a manager after the step", t.CAFile),
		`"dxpu authority show --pem" prints the file of both, for --ca-file and for all persons and programs`)
}

const (
	// authoritySettles is the time that the manager requires between two steps.
	authoritySettles = 2 * time.Second
	renewalsInterval = 500 * time.Millisecond
)

// awaitRenewals waits until all nodes have renewed and the next step can be taken.
func awaitRenewals(ctx context.Context, conn *connection, progress io.Writer) (*dxpuv1.Authority, error) {
	begun, left := time.Now(), uint32(0)
	tick := time.NewTicker(renewalsInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
		res, err := call(ctx, conn, poolAPI.GetAuthority, &dxpuv1.GetAuthorityRequest{})
		if err != nil {
			return nil, err
		}
		a := res.Authority
		if a.NodesLeft == 0 && time.Since(begun) >= authoritySettles {
			return a, nil
		}
		if a.NodesLeft != left {
			left = a.NodesLeft
			fmt.Fprintf(progress, "not renewed yet: %s: %s\n", plural.Count(left, "node", "nodes"), namesLeft(a))
		}
	}
}

// namesLeft lists the first nodes that have not renewed.
func namesLeft(a *dxpuv1.Authority) string {
	names := strings.Join(a.NodeIdsLeft, ", ")
	if int(a.NodesLeft) > len(a.NodeIdsLeft) {
		names += ", ..."
	}
	return names
}

func describeAuthority(w io.Writer, a *dxpuv1.Authority) {
	t := newTable(w, "authority", a.Hash)
	switch {
	case a.NextHash != "":
		t.row("next", a.NextHash)
		t.row("rotation", "begun "+date(a.StepTime)+"; both are trusted. Next: dxpu authority activate")
	case a.PreviousHash != "":
		t.row("previous", a.PreviousHash)
		t.row("rotation", "activated "+date(a.StepTime)+"; both are trusted. Next: dxpu authority retire")
	}
	if a.NodesLeft > 0 {
		t.row("not renewed", plural.Count(a.NodesLeft, "node", "nodes")+": "+namesLeft(a))
	}
	t.flush()
}
