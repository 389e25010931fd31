//go:build linux

package hook

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
)

// poolKills is the set-up of TestSharePoolKills: a manager, an agent that offers a GPU to it, a box
// that divides one, and a host, each as a process.
type poolKills struct {
	*served
	dir, dxpu, manager string
	random             *rand.Rand
	nodes              map[string]*node
	programs           []*exec.Cmd
}

// node is a process of the pool, which is started again as it was.
type node struct {
	args []string
	cmd  *exec.Cmd
	log  bytes.Buffer // its standard error
}

func newPoolKills(t *testing.T, seed uint64) *poolKills {
	dir, err := os.MkdirTemp("", "dxp") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	// The manager comes back at its address. No other process has a port of this one.
	pid := os.Getpid()
	address := fmt.Sprintf("127.%d.%d.%d:29471", 1+pid>>14&0x7f, pid>>7&0x7f, 1+pid&0x7f)
	in := func(name string) string { return filepath.Join(dir, name) }
	k := &poolKills{
		served: &served{t: t, api: agent.NewClient(in("run"))}, dir: dir, dxpu: buildDXPU(t), manager: "http://" + address,
		random: rand.New(rand.NewPCG(seed, 2)), nodes: map[string]*node{},
	}
	k.nodes["manager"] = &node{args: []string{"manager", "--listen", address, "--data-dir", in("pool")}}
	k.nodes["agent"] = &node{args: []string{
		"share", "serve", "--host", "train1", "--root", in("machine"), "--gpu", "test,memory=64MiB",
		"--dir", in("run"), "--state", in("state/s.json"), "--kernel-log", "none",
	}}
	k.nodes["box"] = &node{args: []string{"box", "--name", "b1", "--gpus", "1", "--vram", "64MiB", "--parts", "4", "--state-dir", in("b1")}}
	k.nodes["host"] = &node{args: []string{"host", "--name", "h1", "--slots", "4", "--socket-dir", in("vm"), "--state-dir", in("h1")}}
	for _, name := range []string{"manager", "agent", "box", "host"} {
		n := k.nodes[name]
		if n.args = append(n.args, "--log-level", "error"); name != "manager" {
			n.args = append(n.args, "--manager", k.manager, "--join-token-file", in("pool/join-token"))
		}
		k.start(n)
	}
	t.Cleanup(func() {
		for name, n := range k.nodes {
			_ = n.cmd.Process.Kill()
			_ = n.cmd.Wait()
			if k.t.Failed() {
				k.t.Logf("%s:\n%s", name, n.log.String())
			}
		}
	})
	k.until("the nodes have joined", func() bool { _, err := k.try("node", "wait", "b1", "h1", "train1"); return err == nil })
	return k
}

func (k *poolKills) start(n *node) {
	n.cmd = exec.Command(k.dxpu, n.args...)
	n.cmd.Stderr = &n.log
	if err := n.cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
}

// try runs a command of a user, who does not wait for ever.
func (k *poolKills) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(k.t.Context(), 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, k.dxpu, args...)
	cmd.Env = append(os.Environ(), "DXPU_MANAGER="+k.manager)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// leased is what a user sees of a lease.
type leased struct {
	ID    string `json:"id"`
	State string `json:"state"`
	Spec  struct {
		HostID string `json:"hostId"`
		Part   struct {
			MemoryBytes int64 `json:"memoryBytes,string"`
			Compute     int64 `json:"compute"`
		} `json:"part"`
	} `json:"spec"`
}

// leases returns the leases of the pool, and false while no manager answers.
func (k *poolKills) leases() ([]leased, bool) {
	out, err := k.try("get", "leases", "-o", "json")
	var l struct {
		Leases []leased `json:"leases"`
	}
	return l.Leases, err == nil && json.Unmarshal([]byte(out), &l) == nil
}

// change makes, resizes or ends a lease at random. It may fail: its node or the manager is killed.
func (k *poolKills) change() {
	size := fmt.Sprintf("%dMiB", 1+k.random.IntN(24))
	compute := fmt.Sprintf("%d%%", 1+k.random.IntN(30))
	list, _ := k.leases()
	switch n := len(list); {
	case n < 6 && k.random.IntN(2) == 0 || n == 0:
		_, _ = k.try("lease", "create", "--host", []string{"train1", "h1"}[k.random.IntN(2)], "--gpu-memory", size, "--compute", compute, "--queue")
	case k.random.IntN(2) == 0:
		_, _ = k.try("lease", "delete", list[k.random.IntN(n)].ID)
	default:
		_, _ = k.try("lease", "resize", list[k.random.IntN(n)].ID, "--gpu-memory", size, "--compute", compute)
	}
	list = slices.DeleteFunc(list, func(l leased) bool { return l.Spec.HostID != "train1" })
	if n := len(list); n > 0 && k.random.IntN(2) == 0 {
		k.program(list[k.random.IntN(n)].ID)
	}
}

// program starts a program in a lease, of which the agent may know nothing yet. It takes memory, and
// stays until the agent ends it, or the test: one whose share ended before it began has none.
func (k *poolKills) program(lease string) {
	r := needBuilds(k.t)
	cmd := exec.Command(k.dxpu, "share", "run", "--dir", filepath.Join(k.dir, "run"), "--hook-dir", filepath.Join(r.dir, "hook"), "--lease", lease, filepath.Join(r.dir, "share"))
	cmd.Env = []string{"LD_LIBRARY_PATH=" + filepath.Join(r.dir, "gpu"), "FAKE_GPU=" + newSharing(k.t, 0).gpu, "PATH=" + os.Getenv("PATH")}
	cmd.Stdin = stays(k.t, "init\ntake cuMemAlloc_v2 1048576 0\n")
	if err := cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	k.programs = append(k.programs, cmd)
}

// stays returns a file to read a text from, which does not end afterwards.
func stays(t testing.TB, text string) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	if _, err := w.WriteString(text); err != nil {
		t.Fatal(err)
	}
	return r
}

// kill kills a process of the pool, or a program, and starts it again.
func (k *poolKills) kill() {
	name := []string{"manager", "agent", "agent", "box", "host", "program"}[k.random.IntN(6)]
	n := k.nodes[name]
	if n == nil {
		if len(k.programs) > 0 {
			_ = k.programs[k.random.IntN(len(k.programs))].Process.Kill()
		}
		return
	}
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait()
	if k.random.IntN(2) == 0 {
		time.Sleep(time.Duration(k.random.Int64N(int64(300 * time.Millisecond)))) // so that others act without it
	}
	k.start(n)
}

// settle waits until the pool is as its leases say: each is active, and the agent has the shares of
// its leases, with their sizes, and no others.
func (k *poolKills) settle() {
	var state string
	defer func() {
		if k.t.Failed() {
			k.t.Log(state)
		}
	}()
	k.until("the leases and the shares are the same", func() bool {
		list, ok := k.leases()
		shares, err := k.api.Shares(k.t.Context())
		state = fmt.Sprintf("leases %+v\nshares %+v, %v", list, shares, err)
		if !ok || err != nil {
			return false
		}
		byID := map[string]agent.Share{}
		for _, s := range shares {
			byID[s.ID] = s
		}
		for _, l := range list {
			if l.State != "LEASE_STATE_ACTIVE" && l.State != "LEASE_STATE_PENDING" {
				return false
			}
			s, has := byID[l.ID]
			if l.Spec.HostID != "train1" || l.State == "LEASE_STATE_PENDING" {
				continue
			}
			if !has || s.Memory != l.Spec.Part.MemoryBytes {
				return false
			}
			delete(byID, l.ID)
		}
		return len(byID) == 0
	})
}

// The manager, agents, boxes, hosts and programs are killed at random points while parts of GPUs are
// leased, resized and used. Afterwards the agent has the shares of the leases, to the byte. When the
// leases have ended no share or file is left, and each GPU can be leased as a whole.
func TestSharePoolKills(t *testing.T) {
	k := newPoolKills(t, setting(t, "DXPU_SHARE_SEED", 1))
	kills := setting(t, "DXPU_SHARE_KILLS", 16)
	for i := range kills {
		k.change()
		k.kill()
		if i%24 == 23 { // an agent that starts waits ten seconds for processes of before
			k.settle()
		}
	}
	list, _ := k.leases()
	for _, l := range list {
		k.until("lease "+l.ID+" ends", func() bool {
			out, err := k.try("lease", "delete", l.ID, "--wait")
			return err == nil || strings.Contains(out, "no lease")
		})
	}
	k.settle()
	k.until("only the files of the agent are left", func() bool {
		return slices.Equal(namesIn(t, filepath.Join(k.dir, "run")), []string{"control.sock", "lock"})
	})
	for _, host := range []string{"train1", "h1"} {
		out, err := k.try("lease", "create", "--host", host, "--gpu-memory", "64MiB", "--compute", "100%", "--wait")
		if err != nil {
			t.Errorf("a part of all memory on %s: %v\n%s", host, err, out)
		}
	}
}
