//go:build linux

package hook

import (
	"encoding/binary"
	"fmt"
	"maps"
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

// runKills is the set-up of TestShareRunKills: an agent as a process, and programs that "dxpu
// share run" starts, each in a share of its own.
type runKills struct {
	*installed
	t        *testing.T
	x        *sharing
	random   *rand.Rand
	stop     func(os.Signal)
	programs [4]*runner
	started  int
	agents   int
	closed   bool // without an agent
}

// runner is a process that begins as "dxpu share run" and is a program afterwards.
type runner struct {
	*sharer
	name   string // of its share
	limit  uint64
	unread int // answers
	begun  bool
}

// run starts a program, which may be killed before it is one.
func (k *runKills) run() *runner {
	r := needBuilds(k.t)
	k.started++
	p := &runner{name: fmt.Sprintf("p-%d", k.started), limit: (1 + k.random.Uint64N(8)) << 20}
	cmd := exec.Command(k.dxpu, "share", "run", "--dir", filepath.Join(k.dir, "run"), "--hook-dir", filepath.Join(r.dir, "hook"),
		"--name", p.name, "--gpu-memory", fmt.Sprintf("%dB", p.limit), "--compute", "1%", "--limit", "60%", filepath.Join(r.dir, "share"))
	cmd.Env = []string{"LD_LIBRARY_PATH=" + filepath.Join(r.dir, "gpu"), "FAKE_GPU=" + k.x.gpu, "PATH=" + os.Getenv("PATH")}
	p.sharer = startSharer(k.t, cmd)
	p.order("init")
	return p
}

// order sends an order whose answer is read later.
func (p *runner) order(format string, args ...any) {
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err == nil { // it may have ended
		p.unread++
	}
}

// catchUp reads all answers. It reports whether the program shares the GPU: one that found no
// agent, before or after it had a share, does not.
func (p *runner) catchUp() bool {
	for ; p.unread > 0; p.unread-- {
		ok := p.out.Scan()
		switch {
		case !ok && p.begun:
			p.t.Errorf("the program of share %s ended", p.name)
		case ok && !p.begun:
			p.begun = strings.HasPrefix(p.out.Text(), "0 ")
			ok = p.begun
		}
		if !ok {
			p.kill()
			return false
		}
	}
	return true
}

// orders sends orders at random: to allocate, to free, and to launch.
func (k *runKills) orders(p *runner) {
	for range 1 + k.random.IntN(20) {
		switch k.random.IntN(4) {
		case 0:
			p.order("drop %d", k.random.IntN(100))
		case 1:
			p.order("launch cuLaunchKernel")
		default:
			p.order("take cuMemAlloc_v2 %d %d", 1+k.random.Uint64N(p.limit/4), k.random.IntN(100))
		}
	}
}

// pause lets the others go on for a time at random, so that the next kill is at a random point.
func (k *runKills) pause(most time.Duration) {
	if k.random.IntN(2) == 0 {
		time.Sleep(time.Duration(k.random.Int64N(int64(most))))
	}
}

// kill kills a program, or the agent, among other programs.
func (k *runKills) kill() {
	i := k.random.IntN(len(k.programs))
	if k.programs[i] == nil {
		k.programs[i] = k.run()
		k.pause(200 * time.Millisecond)
	}
	for _, p := range k.programs {
		if p != nil && k.random.IntN(2) == 0 {
			k.orders(p)
		}
	}
	k.pause(5 * time.Millisecond)
	if k.random.IntN(8) == 0 {
		k.killAgent()
		return
	}
	_ = k.programs[i].cmd.Process.Kill()
	_ = k.programs[i].cmd.Wait()
	k.programs[i] = nil
}

// living returns the programs that have started, after all their answers.
func (k *runKills) living() (out []*runner) {
	for i, p := range k.programs {
		switch {
		case p == nil:
		case !p.catchUp():
			k.programs[i] = nil
		default:
			out = append(out, p)
		}
	}
	return out
}

// has returns the memory of a process on the fake GPU, and the launches that it ran.
func (k *runKills) has(p *runner) (memory uint64, launches uint32) {
	b, err := os.ReadFile(k.x.gpu)
	if err != nil {
		k.t.Fatal(err)
	}
	le := binary.LittleEndian
	for b = b[16+6*8 : 16+gpuSize]; len(b) > 0; b = b[24:] {
		if int(le.Uint32(b)) == p.cmd.Process.Pid {
			return le.Uint64(b[8:]), le.Uint32(b[4:])
		}
	}
	return 0, 0
}

// killAgent kills the agent, checks what its programs do without it, and starts the next one.
func (k *runKills) killAgent() {
	k.agents++
	var looked []*runner
	if k.random.IntN(2) == 0 {
		looked = k.living() // before: a launch whose answer is to come may wait for the next agent
	}
	k.stop(os.Kill)
	wait := map[*runner]uint32{}
	for _, p := range looked {
		k.alone(p)
		_, wait[p] = k.has(p)
	}
	k.pause(50 * time.Millisecond)
	for p, before := range wait {
		if _, after := k.has(p); k.closed && after != before {
			k.t.Errorf("share %s: %d launches without an agent, of which it was to wait", p.name, after-before)
		}
	}
	k.stop = k.serve(k.t)
	k.check()
}

// alone checks a program without an agent: closed, it gets nothing, and its launch waits; open,
// it launches, and gets no byte more than its share.
func (k *runKills) alone(p *runner) {
	if k.closed {
		p.do(outOfMemory, "take cuMemAlloc_v2 1 1000")
		p.order("launch cuLaunchKernel")
		return
	}
	used, _ := k.has(p)
	p.do(outOfMemory, "take cuMemAlloc_v2 %d 1000", p.limit-used+1)
	p.do(success, "launch cuLaunchKernel")
	p.do(success, "sync")
}

// fill takes the rest of a program's share, to the byte, and gives it back. It launches.
func (k *runKills) fill(p *runner) {
	used, _ := k.has(p)
	if used > p.limit {
		k.t.Errorf("share %s has %d of %d bytes", p.name, used, p.limit)
		return
	}
	if used < p.limit {
		p.do(success, "take cuMemAlloc_v2 %d 1000", p.limit-used)
		defer p.do(success, "drop 1000")
	}
	p.do(outOfMemory, "take cuMemAlloc_v2 1 1001")
	p.do(success, "launch cuLaunchKernel")
	p.do(success, "sync")
}

// check checks the account of an agent that has started: the sizes of the shares add up to the
// GPU's, each living program has the memory of its share and no byte more, and launches.
func (k *runKills) check() {
	living := k.living()
	for _, p := range living {
		k.until("program "+p.name+" has come back with its memory", func() bool {
			s := k.share(p.name)
			has, _ := k.has(p)
			return len(s.Processes) == 1 && s.Processes[0].Connected && uint64(s.Used) == has
		})
		k.fill(p)
	}
	shares, err := k.api.Shares(k.t.Context())
	if err != nil {
		k.t.Fatal(err)
	}
	gpus, err := k.api.GPUs(k.t.Context())
	if err != nil {
		k.t.Fatal(err)
	}
	memory, compute := gpus[0].Free, gpus[0].Compute
	for _, s := range shares {
		memory += s.Memory
		compute += s.Compute
		if s.Used > s.Memory {
			k.t.Errorf("share %s has %d of %d bytes", s.ID, s.Used, s.Memory)
		}
	}
	if memory != gpus[0].Memory || compute != 1_000_000 {
		k.t.Errorf("the shares and the rest have %d bytes and %d ppm, the GPU %d bytes", memory, compute, gpus[0].Memory)
	}
	// An agent that starts waits ten seconds for processes of the shares whose programs have ended.
	if len(shares) > 32 {
		k.settle(living)
	}
}

// settle waits until only the shares of the living are left, and no file of others but the accounts of all.
func (k *runKills) settle(living []*runner) {
	names := map[string]bool{}
	for _, p := range living {
		names[p.name] = true
	}
	k.until("only the shares of living programs are left", func() bool {
		l, err := k.api.Shares(k.t.Context())
		return err == nil && len(l) == len(names) && !slices.ContainsFunc(l, func(s agent.Share) bool { return !names[s.ID] })
	})
	names["lock"], names["control.sock"] = true, true
	k.until("only the files of living programs are left", func() bool {
		files := slices.DeleteFunc(namesIn(k.t, filepath.Join(k.dir, "run")), func(name string) bool { return strings.HasPrefix(name, "accounts.json") })
		return slices.Equal(files, slices.Sorted(maps.Keys(names)))
	})
	k.until("only the state file is left in its folder", func() bool {
		return slices.Equal(namesIn(k.t, filepath.Join(k.dir, "state")), []string{"s.json"})
	})
	pages := 0
	for _, name := range namesIn(k.t, fmt.Sprintf("/proc/%d/fd", k.pid)) {
		if to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", k.pid, name)); strings.HasPrefix(to, "/memfd:") {
			pages++
		}
	}
	if pages != len(living) {
		k.t.Errorf("the agent has %d pages of %d shares", pages, len(living))
	}
}

func namesIn(t *testing.T, dir string) (out []string) {
	t.Helper()
	l, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range l {
		out = append(out, e.Name())
	}
	return out
}

// "dxpu share run", its programs and the agent are killed at random points, also while a share
// is made. Each agent that starts has an account that adds up, and in it each program that lives
// has its share to the byte, and launches. Without an agent the programs do what the agent said
// for that. In the end no share, memory or file is left. The settings are those of TestShareKills.
func TestShareRunKills(t *testing.T) {
	kills, seed := setting(t, "DXPU_SHARE_KILLS", 30), setting(t, "DXPU_SHARE_SEED", 1)
	for _, without := range []string{"open", "closed"} {
		t.Run(without, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "dxr") // t.TempDir is too long for a socket
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			k := &runKills{
				installed: &installed{dir: dir, dxpu: buildDXPU(t), policy: "gemini", without: without}, t: t, x: newSharing(t, 0),
				random: rand.New(rand.NewPCG(seed, 1)), closed: without == "closed",
			}
			k.stop = k.serve(t)
			t.Cleanup(func() { k.stop(os.Interrupt) })
			for range kills / 2 {
				k.kill()
			}
			living := k.living()
			k.settle(living)
			for _, p := range living {
				k.fill(p)
				p.kill()
			}
			k.settle(nil)
			gpus, err := k.api.GPUs(t.Context())
			if err != nil || gpus[0].Free != gpus[0].Memory || gpus[0].Compute != 1_000_000 {
				t.Errorf("the GPU after all: %+v, %v", gpus, err)
			}
			t.Logf("%d kills, %d of the agent, seed %d", kills/2, k.agents, seed)
		})
	}
}
