package hostproxy_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
	"github.com/dxpu-project/dxpu/internal/hostproxy"
)

// An attach waits for a VM that cannot be reached, says for what, and goes on when the VM
// answers.
func TestAttachWaitsForTheVM(t *testing.T) {
	for _, c := range []struct {
		name string
		// hide makes the VM absent, and returns the function that brings it back.
		hide func(*testing.T, *fakeQEMU) func()
		says string
	}{
		{"it was not started", func(t *testing.T, q *fakeQEMU) func() {
			check(t, os.Rename(q.path, q.path+"x"))
			return func() { check(t, os.Rename(q.path+"x", q.path)) }
		}, "no VM runs: no QEMU listens at "},
		{"it has ended", func(t *testing.T, q *fakeQEMU) func() {
			check(t, os.Rename(q.path, q.path+"x"))
			ln, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", q.path)
			check(t, err)
			ln.(*net.UnixListener).SetUnlinkOnClose(false)
			check(t, ln.Close())
			return func() { check(t, os.Rename(q.path+"x", q.path)) }
		}, "no VM runs: no QEMU listens at "},
		{"another program has its control socket", func(t *testing.T, q *fakeQEMU) func() {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", q.path)
			check(t, err)
			_, err = conn.Read(make([]byte, 1)) // the greeting: QEMU serves this client now
			check(t, err)
			return func() { check(t, conn.Close()) }
		}, "it serves one client at a time"},
		{"as many clients wait as may", func(t *testing.T, q *fakeQEMU) func() {
			check(t, os.Rename(q.path, q.path+"x"))
			crowd(t, q.path)
			return func() { check(t, os.Rename(q.path+"x", q.path)) }
		}, "it serves one client at a time"},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := newFakeQEMU(t)
			r := newCluster(t, options{qmp: q.path})
			r.detach(r.attach(0, 0, 0, 0)) // the proxy has no question left for QEMU
			back := c.hide(t, q)
			b := r.bind(0, 0, 0, 0)
			r.until("the host says that it waits", func() bool { return r.atHost(b).GetWaiting() })
			o := r.atHost(b)
			if o.State != dxpuv1.BindingState_BINDING_STATE_PREPARING || !strings.Contains(o.Detail, c.says) {
				t.Errorf("the host says %v: %s", o.State, o.Detail)
			}
			if _, err := os.Stat(r.hosts[0].vm.Socket(0)); err == nil {
				t.Error("there is a socket although no VM can use it")
			}
			back()
			r.await(b, attached)
			if o := r.atHost(b); o.Waiting || o.Detail != "" {
				t.Errorf("attached, the host says %v", o)
			}
			r.detach(b)
		})
	}
}

// crowd makes a socket that takes no further client, as that of a QEMU that is stopped.
func crowd(t *testing.T, path string) {
	t.Helper()
	open := func() int {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		check(t, err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	ln, address := open(), &unix.SockaddrUnix{Name: path}
	check(t, errors.Join(unix.Bind(ln, address), unix.Listen(ln, 0)))
	for unix.Connect(open(), address) == nil {
	}
}

// A path that cannot become a control socket is refused at the start.
func TestControlSocketIsChecked(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "qmp.sock")
	check(t, os.WriteFile(file, nil, 0o600))
	for _, c := range []struct{ name, path, says string }{
		{"a file", file, "is not a socket"},
		{"a long path", filepath.Join(dir, strings.Repeat("x", 120)), "at most 107"},
		{"not there yet", filepath.Join(dir, "later"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			fab, err := netio.Open(netio.Config{Paths: []netio.PathConfig{{Listen: "127.0.0.1:0"}}, Logger: slog.New(slog.DiscardHandler)})
			check(t, err)
			t.Cleanup(func() { // Run closes the sockets when its context has ended
				ended, cancel := context.WithCancel(context.Background())
				cancel()
				check(t, fab.Run(ended))
			})
			_, err = hostproxy.New(hostproxy.Config{
				Slots: 1, Fabric: fab, Logger: slog.New(slog.DiscardHandler),
				Front: &hostproxy.VM{SocketDir: dir, QMP: c.path, Logger: slog.New(slog.DiscardHandler)},
			})
			if c.says == "" {
				check(t, err)
			} else if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want one with %q", err, c.says)
			}
		})
	}
}
