package hook

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// gpuBuilds has the fake GPU and the program that shares it.
var gpuBuilds = sync.OnceValues(func() (string, error) {
	r, err := buildOnce()
	if err != nil {
		return "", err
	}
	generated, dir := filepath.Join(r.dir, "hook"), filepath.Join(r.dir, "gpu")
	if err := r.fakeGPU(dir, ""); err != nil {
		return "", err
	}
	if err := r.shareProgram(filepath.Join(r.dir, "colocated"), generated, "", "testdata/colocated.c"); err != nil {
		return "", err
	}
	if err := r.shareProgram(filepath.Join(r.dir, "nested"), generated, "", "testdata/nested.c"); err != nil {
		return "", err
	}
	if err := command(".", r.cc, "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-Isrc", "testdata/resolve.c", "-o", filepath.Join(r.dir, "resolve"), "-ldl"); err != nil {
		return "", err
	}
	return dir, r.shareProgram(filepath.Join(r.dir, "share"), generated, "", "testdata/share.c")
})

// fakeGPU builds the fake GPU into a folder.
func (r builds) fakeGPU(dir, flags string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	sources, err := filepath.Glob("testdata/gpu/*.c")
	if err != nil {
		return err
	}
	generated := filepath.Join(r.dir, "hook")
	args := append([]string{"-std=gnu11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1"}, strings.Fields(flags)...)
	if flags == "" { // a library with a sanitizer has undefined symbols
		args = append(args, "-Wl,-z,defs")
	}
	args = append(args, "-Itestdata/gpu", "-Itestdata/fake", "-Isrc", "-I"+generated, filepath.Join(generated, "symbols.c"), filepath.Join(generated, "trampolines.S"),
		"-o", filepath.Join(dir, Library), "-ldl", "-pthread")
	return command(".", r.cc, append(args, sources...)...)
}

// shareProgram builds a program against the library in a folder.
func (r builds) shareProgram(out, hookDir, flags, source string) error {
	args := []string{"-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-Isrc", source, "-o", out, "-L" + hookDir, "-lcuda", "-pthread", "-Wl,--allow-shlib-undefined"}
	return command(".", r.cc, append(args, strings.Fields(flags)...)...)
}

// sharer is a process that shares the fake GPU.
type sharer struct {
	t      testing.TB
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	errOut bytes.Buffer
}

// sharing describes the processes of a test.
type sharing struct {
	agent   *scripted
	gpu     string // file of the fake GPU
	env     []string
	program string // "" is "share"
	hookDir string // "" is "hook"
	gpuDir  string // "" is "gpu"
	bare    bool   // without the library
}

func newSharing(t testing.TB, limit uint64, env ...string) *sharing {
	t.Helper()
	needBuilds(t)
	if _, err := gpuBuilds(); err != nil {
		t.Fatal(err)
	}
	return &sharing{agent: newScripted(t, limit), gpu: filepath.Join(t.TempDir(), "gpu"), env: env, program: "share", hookDir: "hook", gpuDir: "gpu"}
}

// start starts a process. It ends with the test.
func (x *sharing) start(t testing.TB, args ...string) *sharer {
	t.Helper()
	r := needBuilds(t)
	dirs := filepath.Join(r.dir, x.gpuDir)
	if !x.bare {
		dirs = filepath.Join(r.dir, x.hookDir) + ":" + dirs
	}
	cmd := exec.Command(filepath.Join(r.dir, x.program), args...)
	cmd.Env = append([]string{"LD_LIBRARY_PATH=" + dirs, "DXPU_SHARE=" + x.agent.path, "FAKE_GPU=" + x.gpu, "PATH=" + os.Getenv("PATH")}, x.env...)
	return startSharer(t, cmd)
}

// startSharer starts a command that becomes, or is, a process that shares the fake GPU. It ends
// with the test.
func startSharer(t testing.TB, cmd *exec.Cmd) *sharer {
	t.Helper()
	p := &sharer{t: t, cmd: cmd}
	p.cmd.Stderr = &p.errOut
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	return p
}

// kill ends the program, and tells of a failed test what the program was about.
func (p *sharer) kill() {
	if p.cmd.ProcessState != nil {
		return
	}
	threads := threadsOf(p.cmd.Process.Pid)
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	if p.t.Failed() {
		p.t.Logf("the program: %v\n%s%s", p.cmd.ProcessState, threads, p.errOut.String())
	}
}

// threadsOf returns the state of each thread of a process, and where it waits in the kernel.
func threadsOf(pid int) string {
	dirs, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	var out strings.Builder
	for _, dir := range dirs {
		fmt.Fprintf(&out, "thread %s:", filepath.Base(dir))
		status, _ := os.ReadFile(filepath.Join(dir, "status"))
		_, state, _ := strings.Cut(string(status), "State:\t")
		state, _, _ = strings.Cut(state, "\n")
		wchan, _ := os.ReadFile(filepath.Join(dir, "wchan"))
		call, _ := os.ReadFile(filepath.Join(dir, "syscall"))
		fmt.Fprintf(&out, " %s, %s, %s\n", state, wchan, strings.TrimSpace(string(call)))
	}
	return out.String()
}

// send sends a command without waiting for its answer.
func (p *sharer) send(format string, args ...any) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		p.t.Fatal(err)
	}
}

// answer returns the answer to the next command: the driver's result and two values.
func (p *sharer) answer() (result int, a, b uint64) {
	p.t.Helper()
	stalled := time.AfterFunc(2*time.Minute, func() {
		p.t.Logf("no answer for two minutes\n%s", threadsOf(p.cmd.Process.Pid))
		_ = p.cmd.Process.Kill()
	})
	defer stalled.Stop()
	if !p.out.Scan() {
		_ = p.cmd.Wait()
		p.t.Fatalf("the program ended: %v\n%s", p.cmd.ProcessState, p.errOut.String())
	}
	if _, err := fmt.Sscan(p.out.Text(), &result, &a, &b); err != nil {
		p.t.Fatalf("answer %q: %v", p.out.Text(), err)
	}
	return result, a, b
}

// do runs a command and fails the test unless the driver's result is the wanted one.
func (p *sharer) do(want int, format string, args ...any) (a, b uint64) {
	p.t.Helper()
	p.send(format, args...)
	got, a, b := p.answer()
	if got != want {
		_ = p.cmd.Process.Kill() // nothing writes to errOut after the end
		_ = p.cmd.Wait()
		p.t.Fatalf("%s: result %d, want %d\n%s", fmt.Sprintf(format, args...), got, want, p.errOut.String())
	}
	return a, b
}

// end closes the program's input and waits for its end.
func (p *sharer) end() {
	p.t.Helper()
	_ = p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		p.t.Fatalf("%v\n%s", err, p.errOut.String())
	}
	if p.errOut.Len() > 0 {
		p.t.Errorf("standard error: %s", p.errOut.String())
	}
}

// gpuWord returns a word of the first fake GPU's state; testdata/gpu/gpu.h has them.
func (x *sharing) gpuWord(t testing.TB, index int) uint64 {
	t.Helper()
	b, err := os.ReadFile(x.gpu)
	if err != nil || len(b) < 64 {
		t.Fatalf("the fake GPU's file: %d bytes, %v", len(b), err)
	}
	return binary.LittleEndian.Uint64(b[16+8*index:])
}

// setClock sets the clock of a stepped GPU, in ns.
func (x *sharing) setClock(t testing.TB, ns uint64) {
	t.Helper()
	f, err := os.OpenFile(x.gpu, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.WriteAt(binary.LittleEndian.AppendUint64(nil, ns), 8); err != nil {
		t.Fatal(err)
	}
}

const (
	gpuTotal = iota
	gpuInUse
	gpuPeak
	gpuFreeAt
	gpuLaunches
	gpuBusy
)

// Results of the driver.
const (
	success        = 0
	invalidValue   = 1
	outOfMemory    = 2
	invalidContext = 201
	notPermitted   = 800
	notSupported   = 801
	systemNotReady = 802
)

// A program in a share has the share's memory, and its launches pass the open gate
// without a message.
func TestShare(t *testing.T) {
	x := newSharing(t, 1000)
	p := x.start(t)
	p.do(success, "init")
	if _, total := p.do(success, "total 0"); total != 1000 {
		t.Errorf("total %d, want the limit", total)
	}
	p.do(success, "take cuMemAlloc_v2 600 0")
	if free, total := p.do(success, "info"); free != 400 || total != 1000 {
		t.Errorf("%d of %d bytes are free, want 400 of 1000", free, total)
	}
	p.do(outOfMemory, "take cuMemAlloc_v2 401 1")
	p.do(success, "take cuMemAlloc_v2 400 1")
	p.do(success, "drop 0")
	p.do(success, "nothing")
	p.do(success, "launch cuLaunchKernel")
	p.do(success, "sync")
	p.end()
	x.agent.await("the end of the process", func() bool { return len(x.agent.conns) == 0 })
	if n := x.gpuWord(t, gpuLaunches); n != 1 {
		t.Errorf("%d launches reached the GPU", n)
	}
	if x.agent.count(launchAsked) != 0 || x.agent.count(exit) != 1 || x.agent.counted > 1 {
		t.Errorf("messages %v, USAGE of %d launches", x.agent.log, x.agent.counted)
	}
}

// At a gate that asks, each launch waits for its permit, whatever call launches, and
// tells how long it ran.
func TestShareLaunches(t *testing.T) {
	const threads = 64
	for _, tc := range []struct {
		way                    string
		blocks, block, kernels uint64
	}{
		{"cuLaunchKernel", 24, threads, 1},
		{"cuLaunchKernel_ptsz", 24, threads, 1},
		{"cuLaunchKernelEx", 24, threads, 1},
		{"cuLaunchKernelEx_ptsz", 24, threads, 1},
		{"cuLaunchCooperativeKernel", 24, threads, 1},
		{"cuLaunchCooperativeKernel_ptsz", 24, threads, 1},
		{"cuLaunchCooperativeKernelMultiDevice", 24, threads, 1},
		{"cuLaunch", 1, 0, 1},
		{"cuLaunchGrid", 24, 0, 1},
		{"cuLaunchGridAsync", 24, 0, 1},
		{"cuGraphLaunch", 0, 0, 3},
		{"cuGraphLaunch_ptsz", 0, 0, 3},
	} {
		t.Run(tc.way, func(t *testing.T) {
			x := newSharing(t, 1<<20, "FAKE_GPU_CLOCK=step")
			a := x.agent
			a.set32(gpuGate, 1)
			a.wait = true
			p := x.start(t)
			p.do(success, "init")
			p.send("launch %s", tc.way)
			a.await("LAUNCH", func() bool { return a.count(launchAsked) == 1 })
			m := a.last(launchAsked)
			if m.arg[0] != tc.blocks || m.arg[1] != tc.block || m.arg[2] != tc.kernels || (m.arg[3] == 0) != (tc.kernels == 3) {
				t.Errorf("LAUNCH %+v", m)
			}
			if n := x.gpuWord(t, gpuLaunches); n != 0 {
				t.Errorf("%d launches without a permit", n)
			}
			a.all(message{kind: permit, id: m.id})
			if r, _, _ := p.answer(); r != success {
				t.Fatalf("result %d", r)
			}
			p.do(success, "sync")
			a.await("DONE", func() bool { return a.count(done) == 1 })
			if d := a.last(done); d.id != m.id || d.arg[0] != tc.kernels*100_000 {
				t.Errorf("DONE %+v, want the %d us of the kernel", d, tc.kernels*100)
			}
			a.await("IDLE", func() bool { return a.count(idle) == 1 })
			p.end()
		})
	}
}
