package vm_test

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/vhostuser/vhostusertest"
)

// sockets are the programs of the box beside a socket device.
type sockets struct {
	*virtio
	path string // of their UNIX sockets
}

// start starts the back end, and returns a function that kills it: vhost-device-vsock of
// rust-vmm, where it is, or that of the tests.
func (s *sockets) start() (kill func()) {
	s.t.Helper()
	for _, path := range []string{s.socket(), s.path} { // of a server that was killed
		_ = os.Remove(path)
	}
	program, err := exec.LookPath(cmp.Or(os.Getenv("DXPU_VHOST_DEVICE_VSOCK"), "vhost-device-vsock"))
	if err != nil {
		return vhostusertest.NewSocket(s.t, s.socket(), 42, s.path).Close
	}
	version, err := exec.CommandContext(s.t.Context(), program, "--version").Output()
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Attr("with", strings.TrimSpace(string(version)))
	p := s.launch("server", exec.CommandContext(s.t.Context(), program,
		"--guest-cid", "42", "--socket", s.socket(), "--uds-path", s.path))
	return func() { s.kill(p) }
}

// program connects to a port of the guest, and gets back what it sends.
func (s *sockets) program(port int) {
	s.t.Helper()
	c := s.reach(port)
	defer c.Close() //nolint:errcheck // its data has been read
	want := bytes.Repeat([]byte("from the box "), 20_000)
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(want)
		sent <- err
	}()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil {
		s.t.Fatal(err)
	}
	if err := <-sent; err != nil {
		s.t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		s.t.Error("the guest sends back other bytes")
	}
}

// reach connects to a port of the guest. A back end that has just started refuses it until
// the box has connected.
func (s *sockets) reach(port int) net.Conn {
	s.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		c, err := net.Dial("unix", s.path)
		if err == nil {
			line := make([]byte, len(fmt.Sprintf("OK %d\n", port)))
			if err = c.SetDeadline(deadline); err == nil {
				_, err = fmt.Fprintf(c, "CONNECT %d\n", port)
			}
			if err == nil {
				_, err = io.ReadFull(c, line)
			}
			if err == nil {
				return c
			}
			_ = c.Close()
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("the guest cannot be reached: %v", err)
		}
	}
}

// virtioSockets connects programs of the guest and of the box, before and after the death of
// the back end, and in the next lease.
func virtioSockets(t *testing.T, v *virtio) {
	s := &sockets{virtio: v, path: filepath.Join(v.g.dir, "guest.vsock")}
	l, err := net.Listen("unix", s.path+"_1000")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close() //nolint:errcheck // an echo
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	defer func() { _ = l.Close(); <-ended }()

	g := v.g
	if out, exit := g.try(t, "modprobe vmw_vsock_virtio_transport"); exit != 0 {
		t.Fatalf("the guest has no driver of sockets: %s", out) // scripts/build-guest.sh puts it there
	}
	kill := s.start()
	address := v.plug("vsock")
	use := func() {
		t.Helper()
		t.Log(g.sh(t, `d=/sys/bus/pci/devices/%s; until [ -e $d/virtio*/driver ]; do usleep 10000; done; %s echo 1000`, address, helper))
		s.program(5000)
	}
	waiting := g.start(t, "%s wait 5000", helper)
	waiting.says(t, "listening")
	use()

	// The back end dies. The guest's program learns it, and the one that listens goes on.
	stays := g.start(t, "%s stay 1000", helper)
	stays.says(t, "connected")
	kill()
	if stays.wait(t); !strings.Contains(stays.out.String(), "connection reset by peer") {
		t.Errorf("the connection of a lost back end: %s", stays.out.String())
	}
	kill = s.start()
	use()

	// The lease ends with a connection, and the next one has none.
	stays = g.start(t, "%s stay 1000", helper)
	stays.says(t, "connected")
	v.unplug(address)
	stays.wait(t)
	t.Log(stays.out.String())
	v.dxpu("lease", "create", "--host", "host", "--model", "virtio-vsock", "--wait", "--queue", "--timeout", patience.String())
	address = g.pluggedWith(t, 0, "resource0")
	use()
	v.unplug(address)
	kill()
}
