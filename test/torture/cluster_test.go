package torture

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/test/namespace"
)

// diskSize is the size of a manager's file system in MiB. etcd allocates its log
// in segments of 64 MiB.
const diskSize = 400

const joinToken = "token-of-the-torture"

// manager is a manager process in its own network namespace.
type manager struct {
	index   int
	url     string
	dir     string // for files of the test
	dataDir string
	log     string // path
	clock   string // path of the file with the error of its clock, in ns
	args    []string
	ns      *namespace.Namespace

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
}

// cluster holds the managers of one pool.
type cluster struct {
	net      *network
	managers []*manager
}

// newCluster starts the managers.
func newCluster(t *testing.T, n *network, count int) *cluster {
	t.Helper()
	dir := t.TempDir()
	token := filepath.Join(dir, "join-token")
	must(t, os.WriteFile(token, []byte(joinToken+"\n"), 0o600))
	c := &cluster{net: n}
	var members []string
	for i := range count {
		members = append(members, fmt.Sprintf("m%d=http://%s:2380", i, n.manager(i)))
	}
	for i := range count {
		m := &manager{
			index: i, url: fmt.Sprintf("http://%s:7470", n.manager(i)), ns: n.namespaces[i], dir: dir,
			dataDir: filepath.Join(dir, fmt.Sprintf("m%d", i)), log: filepath.Join(dir, fmt.Sprintf("m%d.log", i)),
			clock: filepath.Join(dir, fmt.Sprintf("m%d.clock", i)),
		}
		must(t, os.Mkdir(m.dataDir, 0o700))
		m.smallDisk(t, diskSize)
		m.args = []string{
			"manager", "--listen", n.manager(i) + ":7470", "--data-dir", m.dataDir, "--join-token-file", token, "--insecure-open",
			"--testing-clock", m.clock,
			"--etcd-name", fmt.Sprintf("m%d", i), "--etcd-peer-listen", fmt.Sprintf("http://%s:2380", n.manager(i)),
			"--etcd-initial-cluster", strings.Join(members, ","),
		}
		c.managers = append(c.managers, m)
		t.Cleanup(func() { _ = m.kill() })
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.showLogs(t)
		}
	})
	for _, m := range c.managers {
		must(t, m.start())
	}
	return c
}

// urls returns the URLs of the managers, comma-separated, from index first on.
func (c *cluster) urls(first int) string {
	var out []string
	for i := range c.managers {
		out = append(out, c.managers[(first+i)%len(c.managers)].url)
	}
	return strings.Join(out, ",")
}

func (c *cluster) showLogs(t *testing.T) {
	for _, m := range c.managers {
		raw, _ := os.ReadFile(m.log)
		if len(raw) > 6000 {
			raw = raw[len(raw)-6000:]
		}
		t.Logf("end of the log of manager %d:\n%s", m.index, raw)
	}
}

// start runs the manager with the data on its disk.
func (m *manager) start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd := exec.Command(self, m.args...)
	cmd.Env = append(os.Environ(), childVariable+"=1")
	cmd.Stdout, cmd.Stderr = log, log
	if err := m.ns.Do(cmd.Start); err != nil {
		return err
	}
	exited := make(chan struct{})
	m.cmd, m.exited = cmd, exited
	go func() {
		_ = cmd.Wait() // killed: the exit code has no meaning
		_ = log.Close()
		close(exited)
	}()
	return nil
}

// signal sends a signal to the process.
func (m *manager) signal(s syscall.Signal) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return unlessDead(m.cmd.Process.Signal(s))
}

// kill sends SIGKILL and waits for the end of the process.
func (m *manager) kill() error {
	m.mu.Lock()
	cmd, exited := m.cmd, m.exited
	m.mu.Unlock()
	if cmd == nil {
		return nil
	}
	_ = cmd.Process.Signal(syscall.SIGCONT)
	err := cmd.Process.Kill()
	<-exited
	return unlessDead(err)
}

// unlessDead returns the error of a signal. A manager whose disk was full may end after it has
// room again.
func unlessDead(err error) error {
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// revive starts the managers that have ended by themselves, as a service manager does.
func (c *cluster) revive() error {
	for _, m := range c.managers {
		if m.running() {
			continue
		}
		if err := m.start(); err != nil {
			return err
		}
	}
	return nil
}

// running reports whether the process runs.
func (m *manager) running() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.exited:
		return false
	default:
		return true
	}
}

// jump makes the manager's clock wrong by d.
func (m *manager) jump(d time.Duration) error {
	tmp := m.clock + ".new"
	if err := os.WriteFile(tmp, strconv.AppendInt(nil, int64(d), 10), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, m.clock)
}

// fillDisk uses up the free space of the manager's file system.
func (m *manager) fillDisk() error {
	f, err := os.Create(filepath.Join(m.dataDir, "filler"))
	if err != nil {
		return err
	}
	block := bytes.Repeat([]byte{1}, 1<<16)
	for err == nil {
		_, err = f.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	_ = f.Close() // the filler's content does not matter
	return nil
}

func (m *manager) emptyDisk() error { return os.Remove(filepath.Join(m.dataDir, "filler")) }

// smallDisk mounts a file system for the data of a manager that does not run yet.
func (m *manager) smallDisk(t *testing.T, mebibytes int) {
	t.Helper()
	must(t, syscall.Mount("tmpfs", m.dataDir, "tmpfs", 0, fmt.Sprintf("size=%dm,mode=0700", mebibytes)))
	t.Cleanup(func() { _ = syscall.Unmount(m.dataDir, syscall.MNT_DETACH) })
}
