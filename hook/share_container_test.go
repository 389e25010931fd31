//go:build linux

package hook

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const containerLimit = 1 << 20

// containers has the programs of the container tests: the agent as a process, a root file
// system with the program that takes commands and the fake driver, and a fake GPU.
type containers struct {
	installed
	x         *sharing
	root, gpu string
}

// newContainers skips the test unless it runs as root and has the container programs.
func newContainers(t *testing.T, programs ...string) *containers {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: containers are not run")
	}
	if os.Getuid() != 0 {
		t.Skip("containers with a share need root")
	}
	for _, name := range programs {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%v (apt install podman runc)", err)
		}
	}
	x := newSharing(t, 0)
	dir, err := os.MkdirTemp("", "dxc") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := &containers{installed: installed{dir: dir}, x: x, root: filepath.Join(dir, "root"), gpu: filepath.Join(dir, "gpu")}
	x.gpu = filepath.Join(c.gpu, "gpu")
	c.dxpu = buildDXPU(t)
	c.fill(t)
	stop := c.serve(t)
	t.Cleanup(func() { stop(os.Interrupt) })
	return c
}

// fill makes the root file system: the program, its libraries, and the fake driver in the
// place of NVIDIA's.
func (c *containers) fill(t *testing.T) {
	t.Helper()
	r := needBuilds(t)
	for _, d := range []string{"proc", "sys", "dev", "tmp", "etc", "run/gpu", "bin", "usr/lib/x86_64-linux-gnu", "usr/lib/dxpu-share", "run/dxpu-share"} {
		if err := os.MkdirAll(filepath.Join(c.root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(c.gpu, 0o755); err != nil {
		t.Fatal(err)
	}
	program, driver := filepath.Join(r.dir, "share"), filepath.Join(r.dir, "gpu", Library)
	files := map[string]string{program: "bin/share", driver: "usr/lib/x86_64-linux-gnu/" + Library}
	list := exec.Command("ldd", program, driver)
	list.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(r.dir, "gpu"))
	for _, word := range strings.Fields(runCommand(t, list)) {
		if strings.HasPrefix(word, "/") && !strings.HasSuffix(word, ":") && !strings.HasSuffix(word, Library) {
			files[word] = word
		}
	}
	for from, to := range files {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		to = filepath.Join(c.root, to)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// cli returns a command of dxpu for the agent of the test.
func (c *containers) cli(args ...string) *exec.Cmd {
	cmd := exec.Command(c.dxpu, args...)
	cmd.Env = append(os.Environ(), "DXPU_SHARE_DIR="+filepath.Join(c.dir, "run"))
	return cmd
}

// start starts a container that takes commands from its standard input.
func (c *containers) start(t *testing.T, cmd *exec.Cmd) *sharer {
	t.Helper()
	p := &sharer{t: t, cmd: cmd}
	cmd.Stderr = &p.errOut
	var err error
	if p.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return p
}

// fraction checks that a container has its fraction, and nothing more.
func (c *containers) fraction(t *testing.T, p *sharer, name string) {
	t.Helper()
	p.do(success, "init")
	if free, total := p.do(success, "info"); free != containerLimit || total != containerLimit {
		t.Errorf("%d of %d bytes are free, want the share's %d", free, total, containerLimit)
	}
	p.do(success, "take cuMemAlloc_v2 %d 0", containerLimit)
	p.do(outOfMemory, "take cuMemAlloc_v2 1 1")
	p.do(success, "launch cuLaunchKernel")
	p.do(success, "sync")
	if got := c.share(name); got.Used != containerLimit || len(got.Processes) != 1 {
		t.Errorf("the agent's account: %+v", got)
	}
	if used := c.x.gpuWord(t, gpuInUse); used != containerLimit {
		t.Errorf("%d bytes in use on the GPU", used)
	}
}

// hookDir returns the folder of the driver library.
func (c *containers) hookDir(t *testing.T) string { return filepath.Join(needBuilds(t).dir, "hook") }

// podman returns a run of podman with the root file system.
func (c *containers) podman(args ...string) *exec.Cmd {
	all := []string{"--root", filepath.Join(c.dir, "store"), "--runroot", filepath.Join(c.dir, "runroot"), "--cgroup-manager", "cgroupfs", "--events-backend", "none"}
	i := slices.Index(args, "run")
	all = append(append(all, args[:i]...), "run", "--rm", "-i", "--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024",
		"--runtime", "runc", "-v", c.gpu+":/run/gpu", "-e", "FAKE_GPU=/run/gpu/gpu")
	cmd := exec.Command("podman", append(append(all, args[i+1:]...), "--rootfs", c.root, "/bin/share")...)
	cmd.Env = append(os.Environ(), "DXPU_SHARE_DIR="+filepath.Join(c.dir, "run"))
	return cmd
}

// A container of podman gets a share by its name as a CDI device, and its end frees it.
func TestContainerByCDI(t *testing.T) {
	c := newContainers(t, "podman", "runc")
	name := fmt.Sprintf("test-%d", os.Getpid())
	runCommand(t, c.cli("share", "create", "--name", name, "--gpu-memory", "1MiB", "--compute", "50%"))
	text := runCommand(t, c.cli("share", "cdi", "--hook-dir", c.hookDir(t), "--cdi-dir", "-"))
	const folder = "/var/run/cdi" // podman 4 reads it and /etc/cdi
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "dxpu-"+name+".json")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(file) })
	p := c.start(t, c.podman("run", "--device", "dxpu.dev/share="+name))
	c.fraction(t, p, name)
	p.end()
	c.until("the memory is free", func() bool { s := c.share(name); return s.Used == 0 && len(s.Processes) == 0 })
}

// A container of podman gets a share by its annotations, which ends with it.
func TestContainerByHook(t *testing.T) {
	c := newContainers(t, "podman", "runc")
	hooks := filepath.Join(c.dir, "hooks")
	if err := os.MkdirAll(hooks, 0o755); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]any{
		"version": "1.0.0", "stages": []string{"precreate"}, "when": map[string]any{"annotations": map[string]string{`^dxpu\.dev/gpu-memory$`: "."}},
		"hook": map[string]any{"path": c.dxpu, "args": []string{"dxpu", "share", "oci", "--dir", filepath.Join(c.dir, "run"), "--hook-dir", c.hookDir(t)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(hooks, "dxpu.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	p := c.start(t, c.podman("--hooks-dir", hooks, "run", "--annotation", "dxpu.dev/gpu-memory=1MiB", "--annotation", "dxpu.dev/compute=50%"))
	c.fraction(t, p, "s-1")
	p.end()
	c.none()
}

// none waits until there is no share.
func (c *containers) none() {
	c.t.Helper()
	c.until("the share has ended", func() bool { l, err := c.api.Shares(c.t.Context()); return err == nil && len(l) == 0 })
}

// shell runs a second program in the container of a share that has no memory left. It has
// the environment of the image alone, as the shell of "docker exec" has.
func (c *containers) shell(t *testing.T, run []string) {
	t.Helper()
	text, err := json.Marshal(map[string]any{
		"terminal": false, "user": map[string]any{"uid": 0, "gid": 0}, "cwd": "/", "args": []string{"/bin/share"}, "env": []string{"FAKE_GPU=/run/gpu/gpu", "DXPU_SHARE="},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(run[len(run)-2], text, 0o600); err != nil {
		t.Fatal(err)
	}
	p := c.start(t, exec.Command("runc", run...))
	p.do(success, "init")
	if _, total := p.do(success, "info"); total != containerLimit {
		t.Errorf("a shell without the share's environment has %d bytes, want the share's %d", total, containerLimit)
	}
	p.do(outOfMemory, "take cuMemAlloc_v2 1 0")
	p.end()
}

// A container of runc by a filtered configuration: a shell in it has the share as well, and
// the share ends with the container's SIGKILL. A configuration without the annotation stays as it is.
func TestContainerByFilter(t *testing.T) {
	c := newContainers(t, "runc")
	bundle := filepath.Join(c.dir, "bundle")
	if err := os.MkdirAll(bundle, 0o755); err != nil {
		t.Fatal(err)
	}
	runCommand(t, exec.Command("runc", "spec", "--bundle", bundle))
	file := filepath.Join(bundle, "config.json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	filter := c.cli("share", "oci", "--hook-dir", c.hookDir(t))
	filter.Stdin = bytes.NewReader(text)
	if same := runCommand(t, filter); same != string(text) {
		t.Error("a configuration without annotations is changed")
	}
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	process := config["process"].(map[string]any)
	process["terminal"], process["args"] = false, []string{"/bin/share"}
	process["env"] = []string{"FAKE_GPU=/run/gpu/gpu", "LD_LIBRARY_PATH=/lib"}
	config["root"] = map[string]any{"path": c.root}
	config["annotations"] = map[string]any{"dxpu.dev/gpu-memory": "1MiB", "dxpu.dev/compute": "50%", "dxpu.dev/class": "offline"}
	config["mounts"] = append(config["mounts"].([]any), map[string]any{"destination": "/run/gpu", "source": c.gpu, "type": "bind", "options": []string{"rbind"}})
	if text, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	filter = c.cli("share", "oci", "--hook-dir", c.hookDir(t))
	filter.Stdin = bytes.NewReader(text)
	filtered := runCommand(t, filter)
	if got := c.share("s-1"); got.Owner != os.Getpid() || got.Class != "offline" {
		t.Errorf("share %+v, want this process as owner", got)
	}
	if err := os.WriteFile(file, []byte(filtered), 0o600); err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprintf("dxpu-test-%d", os.Getpid())
	runc := []string{"--root", filepath.Join(c.dir, "runc")}
	p := c.start(t, exec.Command("runc", append(runc, "run", "--bundle", bundle, id)...))
	t.Cleanup(func() { _ = exec.Command("runc", append(runc, "delete", "--force", id)...).Run() })
	c.fraction(t, p, "s-1")
	if owner := c.share("s-1").Owner; owner == os.Getpid() {
		t.Error("the container does not own its share")
	}
	c.shell(t, append(runc, "exec", "--process", filepath.Join(bundle, "shell.json"), id))
	runCommand(t, exec.Command("runc", append(runc, "kill", id, "KILL")...))
	_ = p.cmd.Wait()
	c.none()
}
