//go:build linux

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/client"
	node "github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/gate"
	"github.com/dxpu-project/dxpu/internal/sharing/member"
	"github.com/dxpu-project/dxpu/internal/sharing/offer"
	gpushare "github.com/dxpu-project/dxpu/share"
)

// sharePool are the flags with which a sharing agent joins a pool. Without --manager it
// stands alone: the environment does not name the manager here, so that a machine never
// joins a pool by accident.
type sharePool struct {
	conn      *connection
	host, box string
	tokenFile string
	caHash    string
	stateDir  string
	rack      string
	labels    map[string]string
}

func (o *sharePool) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.conn.manager, "manager", "", "`URL` of the manager to whom the GPUs are offered; several are separated by commas (default: none)")
	f.StringVar(&o.conn.caFile, "ca-file", "", "PEM file of the authority that signed the manager's certificate")
	f.StringVar(&o.caHash, "ca-hash", "", "hash of that authority, as the manager prints it, instead of --ca-file")
	f.StringVar(&o.host, "host", "", "with --manager: `name` of this machine as a host of the pool (default: the host name)")
	f.StringVar(&o.box, "box", "", "with --manager: `name` of the box that the GPUs are in (default: that of the host with -gpus)")
	f.StringVar(&o.tokenFile, "join-token-file", "", "file with the join token, which the agent waits for (default $DXPU_JOIN_TOKEN)")
	f.StringVar(&o.stateDir, "state-dir", "", "directory for the identities and desired states of host and box (default: nodes/ beside --state)")
	f.StringVar(&o.rack, "rack", "", "location of the machine")
	labelsVar(f, &o.labels, "label", "label of host and box, `KEY=VALUE`; repeatable")
}

// poolFlags are the flags that mean nothing without --manager.
var poolFlags = []string{"ca-file", "ca-hash", "host", "box", "join-token-file", "state-dir", "rack", "label"}

// check checks the flags, and sets their defaults.
func (o *sharePool) check(cmd *cobra.Command, of *shareServe) error {
	if o.conn.manager == "" {
		for _, name := range poolFlags {
			if cmd.Flags().Changed(name) {
				return usagef("--%s is for --manager, which is missing", name)
			}
		}
		return nil
	}
	if _, err := client.ParseManagers(o.conn.manager); err != nil {
		return usage(withHint(fmt.Errorf("--manager: %w", err), "write it like %s, several as URL,URL,URL", defaultManager))
	}
	if gate.Hardware(of.policy) {
		return usage(withHint(fmt.Errorf("--policy %s: the agent would not hold programs to the compute of their leases", of.policy), "share by --policy gemini"))
	}
	if of.overCommit != 100 {
		return usagef("--memory-percent: the manager divides the memory of the GPUs, and never twice")
	}
	if o.caHash != "" {
		if err := auth.CheckHash(o.caHash); err != nil {
			return usagef("--ca-hash: %w", err)
		}
	}
	if o.host == "" {
		name, err := os.Hostname()
		if err != nil {
			return withHint(fmt.Errorf("host name: %w", err), "name the machine with --host")
		}
		o.host = name
	}
	o.box = cmp.Or(o.box, o.host+"-gpus")
	o.stateDir = cmp.Or(o.stateDir, filepath.Join(filepath.Dir(of.state), "nodes"))
	for _, n := range []struct{ flag, name string }{{"--host", o.host}, {"--box", o.box}} {
		if !nodeName.MatchString(n.name) {
			return usage(withHint(fmt.Errorf("%s: %.80q is not a name", n.flag, n.name), "a name is 1 to 63 of a-z, 0-9, '-' and '.', and begins with a letter or digit"))
		}
	}
	if o.host == o.box {
		return usagef("--box: host and box need different names")
	}
	return nil
}

// member returns the nodes of the agent in the pool, nil without --manager.
func (o *sharePool) member(ctx context.Context, a *agent.Agent, policy string, log *slog.Logger) (*member.Member, error) {
	if o.conn.manager == "" {
		return nil, nil
	}
	ca, err := readAuthority(o.conn.caFile)
	if err != nil {
		return nil, err
	}
	enrolled := node.Enrolled(filepath.Join(o.stateDir, "host")) && node.Enrolled(filepath.Join(o.stateDir, "box"))
	token, err := nodeToken(ctx, o.tokenFile, enrolled, log)
	if err != nil {
		return nil, err
	}
	info, err := gpushare.Find(policy)
	if err != nil {
		return nil, err
	}
	if _, err := offeredGPUs(a); err != nil {
		return nil, err
	}
	m, err := member.New(member.Config{
		Node: node.Config{Manager: o.conn.manager, JoinToken: token, Version: version(), StateDir: o.stateDir, CA: ca, CAHash: o.caHash},
		Host: o.host, Box: o.box, Rack: o.rack, Labels: o.labels,
		GPUs: func() []offer.GPU { out, _ := offeredGPUs(a); return out }, Mode: boxproxy.ModeOf(info.Execution), Sharing: a, Log: log,
	})
	return m, stateDirError(err)
}

// offeredGPUs describes the GPUs to the pool, those for which it has a place.
func offeredGPUs(a *agent.Agent) (out []offer.GPU, err error) {
	const nvidia = 0x10de
	list := a.GPUs()
	for i := range list {
		g := &list[i]
		place, ok := a.Place(g.Name)
		if !ok {
			err = withHint(errors.New("too many GPUs for a pool"), "offer at most %d, each by --gpu", offer.MaxGPUs)
			continue
		}
		out = append(out, offer.GPU{Name: g.Name, Place: place, Device: &dxpuv1.Device{
			Model: cmp.Or(g.Model, "NVIDIA GPU"), MemoryBytes: uint64(g.Device.Memory), Serial: agent.UUIDText(g.UUID), VendorId: nvidia,
			Multiprocessors: uint32(max(g.Device.SMs, 0)),
		}})
	}
	return out, err
}
