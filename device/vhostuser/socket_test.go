package vhostuser_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device/vhostuser"
	"github.com/dxpu-project/dxpu/device/vhostuser/vhostusertest"
	"github.com/dxpu-project/dxpu/device/virtio/virtiotest"
)

const (
	cid        = 42
	guestPort  = 7000
	rxBuffers  = 16
	rxSize     = 4096
	eventCount = 4
)

// sockets is a driver of a socket device.
type sockets struct {
	*virtiotest.Driver
	g          *guest
	rx, events [][]byte
	rxAt       []uint64
	tx         []byte
	txAt       uint64
}

func (g *guest) sockets() *sockets {
	g.t.Helper()
	s := &sockets{Driver: &virtiotest.Driver{Host: g}, g: g}
	if err := s.Start(virtiotest.Version1, 64); err != nil {
		g.t.Fatal(err)
	}
	for i := range rxBuffers {
		b, at := s.Alloc(rxSize)
		s.rx, s.rxAt = append(s.rx, b), append(s.rxAt, at)
		s.Queues[0].Submit(i, virtiotest.Buffer{Addr: at, Len: rxSize, Write: true})
	}
	for i := range eventCount {
		b, at := s.Alloc(4)
		b[0] = 0xff
		s.events = append(s.events, b)
		s.Queues[2].Submit(i, virtiotest.Buffer{Addr: at, Len: 4, Write: true})
	}
	s.tx, s.txAt = s.Alloc(1 << 20)
	return s
}

// used waits until the device has ended a request of a virtqueue.
func (s *sockets) used(queue int) (head, n uint32) {
	s.g.t.Helper()
	for {
		head, n, ok := s.Queues[queue].Used()
		if ok {
			return head, n
		}
		if n, err := s.g.bus.WaitInterrupt(s.g.t.Context(), queue+1, 20*time.Second); err != nil || n == 0 {
			s.g.t.Fatalf("no interrupt of virtqueue %d: %v; status %#x", queue, err, s.g.Read(virtiotest.Status, 1))
		}
	}
}

// send sends a packet from a port of the guest to one of the host.
func (s *sockets) send(to uint32, op uint16, data []byte) {
	s.g.t.Helper()
	p := vhostusertest.Packet{
		From: s.g.Read(virtiotest.DeviceConfig, 8), To: vhostusertest.HostCID, FromPort: guestPort, ToPort: to,
		Len: uint32(len(data)), Type: vhostusertest.TypeStream, Op: op, Room: 1 << 30,
	}
	n := copy(s.tx, append(p.Append(nil), data...))
	s.Queues[1].Submit(0, virtiotest.Buffer{Addr: s.txAt, Len: n})
	s.used(1)
}

// receive returns the next packet to the guest that is not about credit.
func (s *sockets) receive() (vhostusertest.Packet, []byte) {
	s.g.t.Helper()
	for {
		head, n := s.used(0)
		b := bytes.Clone(s.rx[head][:n])
		p, ok := vhostusertest.ParsePacket(b)
		if !ok {
			s.g.t.Fatalf("a packet of %d bytes: % x", n, b[:min(n, vhostusertest.HeaderSize)])
		}
		s.Queues[0].Submit(int(head), virtiotest.Buffer{Addr: s.rxAt[head], Len: rxSize, Write: true})
		if p.Op != vhostusertest.OpCreditUpdate {
			return p, b[vhostusertest.HeaderSize:]
		}
	}
}

func (s *sockets) wantOp(op uint16) vhostusertest.Packet {
	s.g.t.Helper()
	p, _ := s.receive()
	if p.Op != op {
		s.g.t.Fatalf("the guest gets %+v, want the operation %d", p, op)
	}
	return p
}

// connect connects the guest to an echo at a port of the host, and uses it.
func (s *sockets) connect(port uint32) {
	s.g.t.Helper()
	s.send(port, vhostusertest.OpRequest, nil)
	s.wantOp(vhostusertest.OpResponse)
	want := make([]byte, 30_000)
	for round := range 4 {
		for i := range want {
			want[i] = byte(i * i >> (8 + round))
		}
		s.send(port, vhostusertest.OpData, want)
		var got []byte
		for len(got) < len(want) {
			p, data := s.receive()
			if p.Op != vhostusertest.OpData {
				s.g.t.Fatalf("the guest gets %+v", p)
			}
			got = append(got, data...)
		}
		if !bytes.Equal(got, want) {
			s.g.t.Error("the guest gets other data than it has sent")
		}
	}
}

// event waits for a reset of the transport.
func (s *sockets) event() {
	s.g.t.Helper()
	head, n := s.used(2)
	if n != 4 || binary.LittleEndian.Uint32(s.events[head]) != 0 {
		s.g.t.Errorf("event of %d bytes: % x", n, s.events[head])
	}
}

// echo is a program of the box that sends back all that it gets. It tells ended of each
// connection that has ended.
func echo(t *testing.T, path string) (ended <-chan struct{}) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c := make(chan struct{}, 16)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
			c <- struct{}{}
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return c
}

func await(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		t.Fatalf("no %s", what)
	}
}

// startVsock starts vhost-device-vsock, or skips the test if it is not there.
func startVsock(t *testing.T, backend string, cid uint64, path string) (kill func()) {
	t.Helper()
	named := os.Getenv("DXPU_VHOST_DEVICE_VSOCK")
	program, err := exec.LookPath(cmp.Or(named, "vhost-device-vsock"))
	if named == "" && errors.Is(err, exec.ErrNotFound) {
		t.Skipf("no vhost-device-vsock: set DXPU_VHOST_DEVICE_VSOCK to its path (%v)", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "--guest-cid", strconv.FormatUint(cid, 10), "--socket", backend, "--uds-path", path)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	return kill
}

// TestSocket uses the back end of the tests.
func TestSocket(t *testing.T) {
	testSocket(t, func(backend string, cid uint64, path string) (stop func()) {
		return vhostusertest.NewSocket(t, backend, cid, path).Close
	})
}

// TestVhostDeviceVsock uses that of rust-vmm.
func TestVhostDeviceVsock(t *testing.T) {
	testSocket(t, func(backend string, cid uint64, path string) (stop func()) {
		return startVsock(t, backend, cid, path)
	})
}

// testSocket connects programs of the guest and of the box to each other. The connections end
// with the back end, with the driver and with the lease; the guest learns it, and connects again.
func testSocket(t *testing.T, start func(backend string, cid uint64, path string) (stop func())) {
	dir := tempDir(t)
	path, backend := filepath.Join(dir, "programs"), filepath.Join(dir, "backend.sock")
	stop := start(backend, cid, path)
	ended := echo(t, path+"_1000")
	dev := newDevice(t, vhostuser.Spec{Type: "vsock", Socket: backend, Grace: time.Minute})
	p := newPair(t, dev)
	p.until("healthy device", func() bool { return p.box.Observe().Slots[0].Health == dxpuv1.Health_HEALTH_OK })
	p.bind(true)
	g := p.open()
	s := g.sockets()
	if n := g.Read(virtiotest.DeviceConfig, 8); n != cid {
		t.Errorf("CID %d", n)
	}
	s.connect(1000)

	// A program of the box connects to the guest.
	program, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	if _, err := io.WriteString(program, "CONNECT 7000\n"); err != nil {
		t.Fatal(err)
	}
	request := s.wantOp(vhostusertest.OpRequest)
	if request.ToPort != guestPort {
		t.Errorf("port %d", request.ToPort)
	}
	s.send(request.FromPort, vhostusertest.OpResponse, nil)
	s.send(request.FromPort, vhostusertest.OpData, []byte("hello"))
	line := make([]byte, len("OK 7000\nhello"))
	if _, err := io.ReadFull(program, line); err != nil || string(line) != "OK 7000\nhello" {
		t.Errorf("the program reads %q: %v", line, err)
	}

	// The back end dies, and another one has another address.
	stop()
	await(t, "end of the connection", ended)
	s.event()
	start(backend, cid+1, path)
	s.event()
	if n := g.Read(virtiotest.DeviceConfig, 8); n != cid+1 {
		t.Errorf("CID %d", n)
	}
	s.connect(1000)
	if ok, why := dev.Check(); !ok {
		t.Errorf("unhealthy after the back end has returned: %s", why)
	}

	// The driver starts again, as that of a guest that boots.
	s = g.sockets()
	await(t, "end of the connection", ended)
	s.connect(1000)

	// The lease ends.
	if err := g.bus.Close(); err != nil {
		t.Error(err)
	}
	p.bind(false)
	await(t, "end of the connection", ended)
	p.bind(true)
	p.open().sockets().connect(1000)
}

// The address of a socket device is in its bounds, and that of the back end if it has one.
func TestSocketAddress(t *testing.T) {
	for _, c := range []struct {
		name        string
		server, cid uint64
		silent      bool // the back end does not tell its configuration
		want        uint64
		why         string
	}{
		{name: "lowest", server: 3, want: 3},
		{name: "highest", server: 1<<32 - 2, want: 1<<32 - 2},
		{name: "host", server: 2, why: "the back end has the CID 2: want 3 to 4294967294"},
		{name: "any", server: 1<<32 - 1, why: "the back end has the CID 4294967295: want 3"},
		{name: "reserved bits", server: 1<<32 + 5, why: "the back end has the CID 4294967301: want 3"},
		{name: "same", server: 5, cid: 5, want: 5},
		{name: "another one", server: 5, cid: 6, why: "the back end has the CID 5, and the slot 6"},
		{name: "of the slot", cid: 6, silent: true, want: 6},
		{name: "of no one", silent: true, why: "protocol feature CONFIG"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := tempDir(t)
			server := vhostusertest.NewSocket(t, filepath.Join(dir, "backend.sock"), c.server, filepath.Join(dir, "programs"))
			if c.silent {
				server.Set(func() {
					server.Message = func(_ *vhostusertest.Conn, request uint32, _ []byte) ([]byte, bool) {
						return word(1), request == vhostusertest.GetProtocol
					}
				})
			}
			dev := newDevice(t, vhostuser.Spec{Type: "vsock", Socket: server.Path(), CID: c.cid})
			p := newPair(t, dev)
			slot := p.box.Observe().Slots[0]
			if c.why != "" {
				if slot.Health != dxpuv1.Health_HEALTH_FAILED || !strings.Contains(slot.HealthDetail, c.why) {
					t.Errorf("health %v: %q, want %q", slot.Health, slot.HealthDetail, c.why)
				}
				return
			}
			p.bind(true)
			if n := p.open().Read(virtiotest.DeviceConfig, 8); n != c.want {
				t.Errorf("CID %d, want %d", n, c.want)
			}
		})
	}
}

// A back end that ends a buffer without writing to it does not repeat an earlier packet.
func TestEmptyPacket(t *testing.T) {
	dir := tempDir(t)
	path := filepath.Join(dir, "programs")
	server := vhostusertest.NewSocket(t, filepath.Join(dir, "backend.sock"), cid, path)
	echo(t, path+"_1000")
	dev := newDevice(t, vhostuser.Spec{Type: "vsock", Socket: server.Path()})
	p := newPair(t, dev)
	p.bind(true)
	s := p.open().sockets()
	s.connect(1000) // all places in the pool have held packets
	server.Set(func() {
		server.Work = func(q *vhostusertest.Ring) {
			if q.Index == 0 {
				return
			}
			for head, _, _, ok := q.Next(); ok; head, _, _, ok = q.Next() {
				q.End(head, 0)
			}
			server.EndUnwritten()
		}
	})
	s.send(1000, vhostusertest.OpRequest, nil)
	if p := s.wantOp(0); p != (vhostusertest.Packet{}) {
		t.Errorf("the guest gets %+v", p)
	}
}
