package vm_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// testProcesses runs the product with a process for each role, as users do, and kills
// processes by SIGKILL.
func testProcesses(t *testing.T, g *guest) {
	c := &cluster{t: t, g: g}
	c.startManager()
	boxA := c.start("box-a", "box", "--manager", c.url, "--name", "box-a", "--gpus", "1")
	host := []string{
		"host", "--manager", c.url, "--name", "host", "--slots", "1", "--qmp", g.qmp,
		"--socket-dir", g.dir, "--state-dir", filepath.Join(g.dir, "state"),
	}
	first := c.start("host", host...)
	c.says("host +connected", "get", "hosts") // the lease needs it
	c.dxpu("lease", "create", "--host", "host", "--wait", "--queue")
	address := g.plugged(t, 0)
	g.sh(t, "%s use %s", helper, address)

	c.start("box-b", "box", "--manager", c.url, "--name", "box-b", "--gpus", "1")
	g.loses(t, address, "--bind", func() { c.kill(boxA) })
	at := time.Now()
	t.Log(g.sh(t, "%s use %s", helper, g.plugged(t, 0)))
	t.Logf("the GPU of the other box worked after %v", time.Since(at).Round(time.Millisecond))

	gone := g.leaves(t, address)
	c.kill(first)
	c.start("host-again", host...)
	gone.wait(t) // QEMU still had the device, without its server
	g.sh(t, "%s use %s", helper, g.plugged(t, 0))
	c.dxpu("lease", "delete", c.lease(), "--wait")
	g.unplugged(t, address)
}

// cluster is a pool of processes of the dxpu binary.
type cluster struct {
	t       *testing.T
	g       *guest
	data    string // directory of the manager
	url     string
	manager *process
	boxes   int // started by runBox
}

// startManager starts the manager, or starts it again, and waits until it serves.
func (c *cluster) startManager() {
	c.t.Helper()
	urlFile, address := filepath.Join(c.g.dir, "manager.url"), "127.0.0.1:0"
	if c.url == "" {
		c.data = c.t.TempDir()
		if err := os.WriteFile(filepath.Join(c.data, "join-token"), []byte(joinToken), 0o600); err != nil {
			c.t.Fatal(err)
		}
	} else {
		_, address, _ = strings.Cut(c.url, "://")
	}
	c.url = ""
	_ = os.Remove(urlFile) // of an earlier one
	c.manager = c.start("manager", "manager", "--listen", address, "--url-file", urlFile, "--data-dir", c.data)
	for deadline := time.Now().Add(patience); c.url == ""; {
		text, _ := os.ReadFile(urlFile)
		c.url = strings.TrimSpace(string(text))
		if time.Now().After(deadline) {
			c.t.Fatal("the manager does not serve")
		}
	}
}

const joinToken = "a-token-of-a-test"

// process is one process of a cluster.
type process struct {
	cmd    *exec.Cmd
	ended  chan struct{}
	killed bool // its log may be that of the next one
}

// start starts a daemon for the duration of the test.
func (c *cluster) start(log string, args ...string) *process {
	c.t.Helper()
	return c.launch(log, c.command(args...))
}

// launch is start for a prepared command.
func (c *cluster) launch(log string, cmd *exec.Cmd) *process {
	c.t.Helper()
	p := &process{cmd: cmd, ended: make(chan struct{})}
	out, err := os.Create(filepath.Join(c.g.dir, log+".log"))
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the signal comes when this thread ends (prctl(2))
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
		}
		close(p.ended)
	}()
	err = <-started
	for _, f := range cmd.ExtraFiles {
		_ = f.Close() // the process has inherited it
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		<-p.ended
		if text, err := os.ReadFile(out.Name()); c.t.Failed() && err == nil && !p.killed {
			c.t.Logf("%s ends with:\n%s", log, tail(strings.TrimSpace(string(text)), 8))
		}
	})
	return p
}

func (c *cluster) kill(p *process) {
	c.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		c.t.Fatal(err)
	}
	<-p.ended
	p.killed = true
}

// dxpu runs a command that must succeed.
func (c *cluster) dxpu(args ...string) string {
	c.t.Helper()
	out, err := c.try(args...)
	if err != nil {
		c.t.Fatalf("dxpu %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// try runs a command.
func (c *cluster) try(args ...string) (string, error) {
	c.t.Helper()
	out, err := c.command(append(args, "--manager", c.url)...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// lease is the ID of the only lease.
func (c *cluster) lease() string {
	c.t.Helper()
	return strings.Fields(tail(c.dxpu("get", "leases", "--all"), 1))[0]
}

// runHost starts a host proxy with a slot in the guest, whose sockets the store keeps.
func (c *cluster) runHost(store *fdStore) *process {
	c.t.Helper()
	return c.launch("host", store.give(c.command("host", "--manager", c.url, "--name", "host", "--slots", "1", "--qmp", c.g.qmp,
		"--socket-dir", c.g.dir, "--state-dir", filepath.Join(c.g.dir, "state-of-host"))))
}

// runBox starts a box with a GPU. Each has another name: a box that is lost again and
// again gets no new bindings for a while.
func (c *cluster) runBox() *process {
	c.t.Helper()
	c.boxes++
	name := fmt.Sprintf("box-%d", c.boxes)
	return c.start("box", "box", "--manager", c.url, "--name", name, "--gpus", "1", "--state-dir", filepath.Join(c.g.dir, "state-of-"+name))
}

// says waits until a command prints something.
func (c *cluster) says(pattern string, args ...string) {
	c.t.Helper()
	want := regexp.MustCompile(pattern)
	for deadline := time.Now().Add(patience); ; {
		out := c.dxpu(args...)
		if want.MatchString(out) {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("dxpu %s does not print %q:\n%s", strings.Join(args, " "), pattern, out)
		}
	}
}

func (c *cluster) command(args ...string) *exec.Cmd {
	c.t.Helper()
	bin, err := programs()
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.CommandContext(c.t.Context(), filepath.Join(bin, "dxpu"), args...)
	cmd.Env = append(os.Environ(), "DXPU_JOIN_TOKEN="+joinToken)
	return cmd
}
