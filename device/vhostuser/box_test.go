package vhostuser_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/driver/vfiouserbus"
	"github.com/dxpu-project/dxpu/device/vhostuser"
	"github.com/dxpu-project/dxpu/device/vhostuser/vhostusertest"
	"github.com/dxpu-project/dxpu/device/virtio/virtiotest"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/agent/agenttest"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
	"github.com/dxpu-project/dxpu/internal/hostproxy"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
)

// tempDir returns a directory whose paths are short enough for sockets.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dxpu")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// pair is a box with one slot and a host with one slot, joined over UDP.
type pair struct {
	t               *testing.T
	box             *boxproxy.Box
	host            *hostproxy.Proxy
	boxFab, hostFab *netio.Fabric
	vm              *hostproxy.VM
	news            chan struct{}
	revision        uint64
}

func newPair(t *testing.T, dev device.Device) *pair {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	polling := reader.Polling{Window: reader.DefaultWindow}
	p := &pair{t: t, news: make(chan struct{}, 1), vm: &hostproxy.VM{SocketDir: tempDir(t), Logger: log, Polling: polling}}
	open := func() *netio.Fabric {
		f, err := netio.Open(netio.Config{Paths: []netio.PathConfig{{Listen: "127.0.0.1:0"}}, Logger: log, Polling: polling})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	p.boxFab, p.hostFab = open(), open()
	var err error
	if p.box, err = boxproxy.New(boxproxy.Config{Slots: []boxproxy.Slot{{Device: dev}}, Fabric: p.boxFab, Logger: log}); err != nil {
		t.Fatal(err)
	}
	if p.host, err = hostproxy.New(hostproxy.Config{Slots: 1, Front: p.vm, Fabric: p.hostFab, Domain: "h/0", Logger: log}); err != nil {
		t.Fatal(err)
	}
	note := func() {
		select {
		case p.news <- struct{}{}:
		default:
		}
	}
	p.box.OnChange(note)
	p.host.OnChange(note)
	for _, run := range []func(context.Context) error{p.boxFab.Run, p.hostFab.Run, p.box.Run, p.host.Run} {
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
		t.Cleanup(func() { cancel(); wg.Wait() }) // ended in the opposite order
	}
	return p
}

// bind binds the two slots, or ends their binding.
func (p *pair) bind(bound bool) {
	p.t.Helper()
	p.revision++
	const boxNode, hostNode = 9, 7
	var bindings []agenttest.Binding
	if bound {
		bindings = []agenttest.Binding{{
			ID: "b", Epoch: p.revision, Domain: "h/0",
			Host: agenttest.End{Node: hostNode, Addresses: agent.Addresses(p.hostFab)},
			Box:  agenttest.End{Node: boxNode, Addresses: agent.Addresses(p.boxFab)},
		}}
	}
	p.box.Apply(agenttest.Desired(boxNode, p.revision, bindings...))
	p.host.Apply(agenttest.Desired(hostNode, p.revision, bindings...))
	state := dxpuv1.BindingState_BINDING_STATE_ATTACHED
	if !bound {
		state = dxpuv1.BindingState_BINDING_STATE_UNSPECIFIED
	}
	p.until("the binding", func() bool { return p.host.Observe().Slots[0].Binding.GetState() == state })
}

func (p *pair) until(what string, cond func() bool) {
	p.t.Helper()
	deadline := time.After(20 * time.Second)
	for !cond() {
		select {
		case <-p.news:
		case <-deadline:
			p.t.Fatalf("no %s: host %v, box %v", what, p.host.Observe().Slots, p.box.Observe().Slots)
		}
	}
}

// guest is the host of a driver: a process that opens the slot's socket as a VMM does.
type guest struct {
	t   *testing.T
	bus *vfiouserbus.Bus
	bar driver.Region
	mem driver.DMA
}

func (p *pair) open() *guest {
	p.t.Helper()
	g := &guest{t: p.t}
	var err error
	if g.bus, err = vfiouserbus.Open(p.t.Context(), p.vm.Socket(0)); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = g.bus.Close() })
	if g.bar, err = g.bus.BAR(0); err != nil {
		p.t.Fatal(err)
	}
	queues := g.Read(18, 2) // num_queues
	if err := g.bus.EnableMSIX(int(queues) + 1); err != nil {
		p.t.Fatal(err)
	}
	if g.mem, err = g.bus.AllocDMA(8 << 20); err != nil {
		p.t.Fatal(err)
	}
	return g
}

func (g *guest) Read(off uint64, n int) uint64 {
	b := make([]byte, 8)
	if _, err := g.bar.ReadAt(b[:n], int64(off)); err != nil {
		g.t.Fatal(err)
	}
	return binary.LittleEndian.Uint64(b)
}

func (g *guest) Write(off uint64, n int, v uint64) {
	if _, err := g.bar.WriteAt(binary.LittleEndian.AppendUint64(nil, v)[:n], int64(off)); err != nil {
		g.t.Fatal(err)
	}
}

func (g *guest) Memory() ([]byte, uint64) { return g.mem.Bytes(), g.mem.Segments()[0].Addr }

// disk is a driver of a disk with one virtqueue.
type disk struct {
	*virtiotest.Driver
	g          *guest
	data       []byte
	header     []byte
	at, dataAt uint64 // of header and data
}

const (
	blkRead, blkWrite, blkFlush = 0, 1, 4
	sector                      = 512
	blkFlushFeature             = 1 << 9
)

func (g *guest) disk() *disk { return g.diskOf(&virtiotest.Driver{Host: g}) }

func (g *guest) diskOf(driver *virtiotest.Driver) *disk {
	g.t.Helper()
	d := &disk{Driver: driver, g: g}
	if err := d.Start(d.Features()&(virtiotest.Version1|blkFlushFeature), 64); err != nil {
		g.t.Fatal(err)
	}
	d.header, d.at = d.Alloc(32) // the status is its byte 16
	d.data, d.dataAt = d.Alloc(1 << 20)
	return d
}

// begin submits a request for the first n bytes of data.
func (d *disk) begin(op uint32, at int64, n int) {
	binary.LittleEndian.PutUint32(d.header, op)
	binary.LittleEndian.PutUint64(d.header[8:], uint64(at/sector))
	d.header[16] = 0xff
	b := []virtiotest.Buffer{{Addr: d.at, Len: 16}}
	if n > 0 {
		b = append(b, virtiotest.Buffer{Addr: d.dataAt, Len: n, Write: op == blkRead})
	}
	d.Queues[0].Submit(0, append(b, virtiotest.Buffer{Addr: d.at + 16, Len: 1, Write: true})...)
}

// end waits for the end of the request.
func (d *disk) end() {
	d.g.t.Helper()
	for {
		if _, _, ok := d.Queues[0].Used(); ok {
			break
		}
		if n, err := d.g.bus.WaitInterrupt(d.g.t.Context(), 1, 20*time.Second); err != nil || n == 0 {
			d.g.t.Fatalf("no interrupt: %v; status %#x", err, d.g.Read(virtiotest.Status, 1))
		}
	}
	if d.header[16] != 0 {
		d.g.t.Fatalf("status %d of the request", d.header[16])
	}
}

func (d *disk) do(op uint32, at int64, n int) {
	d.g.t.Helper()
	d.begin(op, at, n)
	d.end()
}

// storage is a running qemu-storage-daemon with a disk.
type storage struct {
	t             *testing.T
	socket, image string
	cmd           *exec.Cmd
}

const diskSize = 8 << 20

func newStorage(t *testing.T) *storage {
	t.Helper()
	dir := tempDir(t)
	s := &storage{t: t, socket: filepath.Join(dir, "disk.sock"), image: filepath.Join(dir, "disk.img")}
	if err := os.WriteFile(s.image, make([]byte, diskSize), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start()
	t.Cleanup(s.kill)
	return s
}

// start starts the daemon; it has its socket when it writes the file of its process ID.
func (s *storage) start() {
	s.t.Helper()
	s.cmd = exec.Command(filepath.Join(vhostusertest.Installed(s.t), "qemu-storage-daemon"),
		"--blockdev", "file,node-name=disk,filename="+s.image,
		"--export", "vhost-user-blk,id=disk,node-name=disk,writable=on,addr.type=unix,addr.path="+s.socket)
	s.cmd.Stderr = os.Stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
}

// kill ends the daemon, as a crash does.
func (s *storage) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

func newDevice(t *testing.T, spec vhostuser.Spec) *vhostuser.Device {
	t.Helper()
	d, err := vhostuser.New(t.Context(), spec, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A driver writes and reads a disk of qemu-storage-daemon through host proxy, network and
// box proxy; a daemon that is killed and starts again carries out the request that it had;
// and the next tenant of the slot gets a working disk, too.
func TestStorageDaemon(t *testing.T) {
	s := newStorage(t)
	dev := newDevice(t, vhostuser.Spec{Socket: s.socket})
	p := newPair(t, dev)
	p.until("healthy disk", func() bool { return p.box.Observe().Slots[0].Health == dxpuv1.Health_HEALTH_OK })
	if d := p.box.Observe().Slots[0].Device; d.Model != "virtio-blk" || d.MemoryBytes != diskSize {
		t.Errorf("model %q, %d bytes", d.Model, d.MemoryBytes)
	}
	p.bind(true)
	g := p.open()
	d := g.disk()
	if n := g.Read(virtiotest.DeviceConfig, 8); n != diskSize/sector {
		t.Errorf("%d sectors", n)
	}
	want := make([]byte, 1<<20)
	for i := range want {
		want[i] = byte(i * i >> 7)
	}
	copy(d.data, want)
	d.do(blkWrite, 1<<20, len(want))
	d.do(blkFlush, 0, 0)
	clear(d.data)
	d.do(blkRead, 1<<20, len(want))
	if !bytes.Equal(d.data, want) {
		t.Error("the disk returns other data than was written")
	}

	// The daemon is gone while a request is under way.
	s.kill()
	d.begin(blkWrite, 4<<20, 1<<20)
	s.start()
	d.end()
	image, err := os.ReadFile(s.image)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(image[1<<20:2<<20], want) || !bytes.Equal(image[4<<20:5<<20], want) {
		t.Error("the image lacks data that was written")
	}
	if ok, why := dev.Check(); !ok {
		t.Errorf("unhealthy after the daemon has returned: %s", why)
	}

	if err := g.bus.Close(); err != nil {
		t.Error(err)
	}
	p.bind(false)
	p.bind(true)
	d = p.open().disk()
	d.do(blkRead, 4<<20, 1<<20)
	if !bytes.Equal(d.data, want) {
		t.Error("the next driver reads other data")
	}
}

// virtiofsd ends with the lease of its directory, and with it the files that the guest has
// open. One that starts again serves the next lease.
func TestDirectoryServerEndsWithLease(t *testing.T) {
	dir := tempDir(t)
	socket := filepath.Join(dir, "fs.sock")
	path := filepath.Join(vhostusertest.Installed(t), "virtiofsd")
	start := func() *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), path, "--socket-path="+socket, "--shared-dir="+dir, "--sandbox=none", "--log-level=off")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	server := start()
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	dev := newDevice(t, vhostuser.Spec{Type: "fs", Socket: socket})
	p := newPair(t, dev)
	p.until("healthy directory", func() bool { return p.box.Observe().Slots[0].Health == dxpuv1.Health_HEALTH_OK })
	for range 2 {
		p.bind(true)
		g := p.open()
		d := &virtiotest.Driver{Host: g}
		if err := d.Start(virtiotest.Version1, 64); err != nil {
			t.Fatal(err)
		}
		request, at := d.Alloc(56) // FUSE_INIT
		_, answer := d.Alloc(256)
		binary.LittleEndian.PutUint32(request, 56)
		binary.LittleEndian.PutUint32(request[4:], 26)
		binary.LittleEndian.PutUint32(request[40:], 7)
		binary.LittleEndian.PutUint32(request[44:], 31)
		d.Queues[1].Submit(0, virtiotest.Buffer{Addr: at, Len: 56}, virtiotest.Buffer{Addr: answer, Len: 256, Write: true})
		for ok := false; !ok; {
			if _, _, ok = d.Queues[1].Used(); !ok {
				if n, err := g.bus.WaitInterrupt(t.Context(), 2, 20*time.Second); err != nil || n == 0 {
					t.Fatalf("no answer to FUSE_INIT: %v", err)
				}
			}
		}
		if err := g.bus.Close(); err != nil {
			t.Error(err)
		}
		p.bind(false)
		limit := time.AfterFunc(20*time.Second, func() { _ = server.Process.Kill() })
		_ = server.Wait()
		if limit.Stop(); !server.ProcessState.Exited() {
			t.Fatal("virtiofsd goes on after the lease")
		}
		server = start()
		if ok, why := dev.Check(); !ok {
			t.Errorf("unhealthy: %s", why)
		}
	}
}
