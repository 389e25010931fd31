package vfiouser

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/rawio/rights"
)

// patience bounds what a test waits for; it ends a test that hangs and is
// never waited for by one that passes.
const patience = 10 * time.Second

// rawPeer speaks bytes, with an encoder of its own.
type rawPeer struct {
	tb testing.TB
	*net.UnixConn
	id uint16
}

// reply is one message as a peer sees it.
type reply struct {
	id, cmd uint16
	flags   uint32
	errno   unix.Errno
	body    []byte
	fds     []int
}

func (p *rawPeer) message(cmd uint16, flags uint32, body []byte) []byte {
	p.id++
	b := binary.LittleEndian.AppendUint16(nil, p.id)
	b = binary.LittleEndian.AppendUint16(b, cmd)
	b = binary.LittleEndian.AppendUint32(b, uint32(16+len(body)))
	b = binary.LittleEndian.AppendUint32(b, flags)
	b = binary.LittleEndian.AppendUint32(b, 0)
	return append(b, body...)
}

func (p *rawPeer) send(b []byte, fds ...int) {
	p.tb.Helper()
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	n, _, err := p.WriteMsgUnix(b, oob, nil)
	if err == nil && n < len(b) {
		_, err = p.Write(b[n:])
	}
	if err != nil {
		p.tb.Fatal(err)
	}
}

func (p *rawPeer) recv() reply {
	p.tb.Helper()
	r, err := p.tryRecv()
	if err != nil {
		p.tb.Fatal(err)
	}
	return r
}

func (p *rawPeer) tryRecv() (reply, error) {
	_ = p.SetReadDeadline(time.Now().Add(patience))
	var head [16]byte
	oob := make([]byte, 256)
	n, oobn, _, _, err := p.ReadMsgUnix(head[:], oob)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err == nil && n < 16 {
		_, err = io.ReadFull(p, head[n:])
	}
	if err != nil {
		return reply{}, err
	}
	r := reply{
		id: binary.LittleEndian.Uint16(head[:]), cmd: binary.LittleEndian.Uint16(head[2:]),
		flags: binary.LittleEndian.Uint32(head[8:]), errno: unix.Errno(binary.LittleEndian.Uint32(head[12:])),
	}
	size := binary.LittleEndian.Uint32(head[4:])
	if size < 16 || size > 4<<20 {
		return reply{}, fmt.Errorf("size %d", size)
	}
	r.body = make([]byte, size-16)
	if _, err := io.ReadFull(p, r.body); err != nil {
		return reply{}, err
	}
	if oobn > 0 {
		r.fds, err = rights.Parse(oob[:oobn])
	}
	return r, err
}

// ask sends a request and checks that the reply is for it.
func (p *rawPeer) ask(cmd uint16, body []byte, fds ...int) reply {
	p.tb.Helper()
	p.send(p.message(cmd, 0, body), fds...)
	r := p.recv()
	if r.id != p.id || r.cmd != cmd || r.flags&0xf != 1 {
		p.tb.Fatalf("reply %+v to request %d, command %d", r, p.id, cmd)
	}
	if (r.flags == 0x21) != (r.errno != 0) || r.errno != 0 && len(r.body) != 0 {
		p.tb.Fatalf("malformed error reply %+v", r)
	}
	return r
}

// ok is ask that wants no error.
func (p *rawPeer) ok(cmd uint16, body []byte, fds ...int) reply {
	p.tb.Helper()
	r := p.ask(cmd, body, fds...)
	if r.errno != 0 {
		p.tb.Fatalf("command %d: %v", cmd, r.errno)
	}
	return r
}

// wantErr is ask that wants an error.
func (p *rawPeer) wantErr(want unix.Errno, cmd uint16, body []byte, fds ...int) {
	p.tb.Helper()
	if r := p.ask(cmd, body, fds...); r.errno != want {
		p.tb.Fatalf("command %d: errno %v, want %v", cmd, r.errno, want)
	}
}

// le appends values of the widths 4 (uint32) and 8 (uint64).
func le(vs ...any) []byte {
	var b []byte
	for _, v := range vs {
		switch v := v.(type) {
		case int:
			b = binary.LittleEndian.AppendUint32(b, uint32(v))
		case uint32:
			b = binary.LittleEndian.AppendUint32(b, v)
		case uint64:
			b = binary.LittleEndian.AppendUint64(b, v)
		case []byte:
			b = append(b, v...)
		default:
			panic(fmt.Sprintf("le: %T", v))
		}
	}
	return b
}

func access(region int, off uint64, n int, data ...byte) []byte { return le(off, region, n, data) }

func dmaMap(flags int, off, addr, size uint64) []byte { return le(32, flags, off, addr, size) }

func dmaUnmap(addr, size uint64) []byte { return le(24, 0, addr, size) }

const qemuVersion = "\x00\x00\x00\x00" + `{"capabilities": {"pgsizes": 4096, "max_msg_fds": 16, "max_dma_maps": 65535, ` +
	`"max_data_xfer_size": 1048576, "migration": {"max_bitmap_size": 268435456, "pgsize": 4096}, "write_multiple": true}}` + "\x00"

// testDevice is memory, and channels for what a test wants to see.
type testDevice struct {
	mu       sync.Mutex
	mem      [NumRegions][]byte
	hold     map[uint32]chan *Access // accesses to the region are not answered
	failing  map[uint32]bool
	resets   int
	changes  []IRQChange
	mapErr   error
	refused  []error // the reasons of MapRefused
	onReset  func(done func(error))
	onAccess func(*Conn, *Access)

	connected    chan *Conn
	disconnected chan error
}

func (d *testDevice) Connected(c *Conn) { d.connected <- c }

func (d *testDevice) Disconnected(_ *Conn, err error) { d.disconnected <- err }

func (d *testDevice) Access(c *Conn, a *Access) {
	d.mu.Lock()
	hold, failing, on := d.hold[a.Region], d.failing[a.Region], d.onAccess
	switch mem := d.mem[a.Region][a.Offset:]; {
	case a.Write:
		copy(mem, a.Data)
	default:
		copy(a.Data, mem)
	}
	d.mu.Unlock()
	switch {
	case on != nil:
		on(c, a)
	case hold != nil:
		hold <- a
	case failing:
		a.Fail(errors.New("broken"))
	default:
		a.Reply()
	}
}

func (d *testDevice) Reset(_ *Conn, done func(error)) {
	d.mu.Lock()
	d.resets++
	on := d.onReset
	d.mu.Unlock()
	if on != nil {
		on(done)
		return
	}
	done(nil)
}

func (d *testDevice) DMAMap(*Conn, Mapping) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mapErr
}

func (d *testDevice) MapRefused(_ *Conn, _ Mapping, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refused = append(d.refused, err)
}

func (d *testDevice) DMAUnmap(*Conn, Mapping) {}

func (d *testDevice) IRQ(_ *Conn, ch IRQChange) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changes = append(d.changes, ch)
}

// set changes the device while a server may be using it.
func (d *testDevice) set(change func(*testDevice)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
}

func (d *testDevice) peek(region, off, n int) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]byte(nil), d.mem[region][off:off+n]...)
}

// holding makes accesses to the region wait for the test.
func (d *testDevice) holding(region uint32) chan *Access {
	hold := make(chan *Access, 256)
	d.set(func(d *testDevice) { d.hold[region] = hold })
	return hold
}

// fixture is a server with a device and its socket.
type fixture struct {
	*Server
	tb   testing.TB
	dev  *testDevice
	path string
}

// Sizes of the test device.
const (
	testBAR0 = 64 << 10
	testBAR2 = 1 << 20
	testCfg  = 4096
)

func testConfig() (Config, *testDevice) {
	const rw = RegionFlagRead | RegionFlagWrite
	cfg := Config{Resettable: true, WriteMultiple: true}
	cfg.Regions[0] = Region{Size: testBAR0, Flags: rw}
	cfg.Regions[2] = Region{Size: testBAR2, Flags: rw}
	cfg.Regions[RegionConfig] = Region{Size: testCfg, Flags: rw}
	cfg.Regions[RegionROM] = Region{Size: 2048, Flags: RegionFlagRead}
	cfg.IRQs = [NumIRQs]uint32{1, 32, 64, 1, 1}
	d := &testDevice{
		hold: map[uint32]chan *Access{}, failing: map[uint32]bool{},
		connected: make(chan *Conn, 1000), disconnected: make(chan error, 1000),
	}
	for i, r := range cfg.Regions {
		d.mem[i] = make([]byte, r.Size)
	}
	copy(d.mem[RegionConfig], testConfigSpace())
	cfg.Handler = d
	return cfg, d
}

// testConfigSpace has a capability list PM, MSI-X, PCI Express.
func testConfigSpace() []byte {
	b := make([]byte, testCfg)
	binary.LittleEndian.PutUint32(b, 0x12345678)
	b[0x06] = 0x10
	b[0x34] = 0x40
	b[0x40], b[0x41] = 0x01, 0x50
	b[0x50], b[0x51] = 0x11, 0x60
	b[0x60], b[0x61] = 0x10, 0
	return b
}

func tempDir(tb testing.TB) string {
	dir, err := os.MkdirTemp("", "vfu") //nolint:usetesting // a socket's path has at most 107 bytes
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func serve(tb testing.TB, change ...func(*Config)) *fixture {
	tb.Helper()
	cfg, dev := testConfig()
	for _, f := range change {
		f(&cfg)
	}
	srv, err := NewServer(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	f := &fixture{Server: srv, tb: tb, dev: dev, path: filepath.Join(tempDir(tb), "s")}
	ln, err := Listen(f.path)
	if err != nil {
		tb.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(bg, ln) }()
	tb.Cleanup(func() {
		_ = srv.Close()
		if err := <-served; !errors.Is(err, ErrServerClosed) {
			tb.Errorf("Serve: %v", err)
		}
		if _, err := os.Lstat(f.path); !errors.Is(err, os.ErrNotExist) {
			tb.Errorf("the socket file is left behind: %v", err)
		}
	})
	return f
}

// dial connects without negotiating.
func (f *fixture) dial() *rawPeer {
	f.tb.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: f.path, Net: "unix"})
	if err != nil {
		f.tb.Fatal(err)
	}
	f.tb.Cleanup(func() { _ = c.Close() })
	return &rawPeer{tb: f.tb, UnixConn: c}
}

// connect negotiates as QEMU does.
func (f *fixture) connect() (*rawPeer, *Conn) {
	f.tb.Helper()
	p := f.dial()
	p.ok(1, []byte(qemuVersion))
	return p, <-f.dev.connected
}

// memfd makes memory with a file descriptor.
func memfd(tb testing.TB, size int) (*os.File, []byte) {
	tb.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		tb.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "memfd")
	tb.Cleanup(func() { _ = f.Close() })
	if err := f.Truncate(int64(size)); err != nil {
		tb.Fatal(err)
	}
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = unix.Munmap(b) })
	return f, b
}

func event(tb testing.TB) *os.File {
	tb.Helper()
	f, err := NewEvent()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = f.Close() })
	return f
}

func mustFD(tb testing.TB, f *os.File) int {
	tb.Helper()
	n, err := fdOf(f)
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// signals returns how often the event has been signalled, without waiting.
func signals(f *os.File) uint64 {
	_ = f.SetReadDeadline(time.Now().Add(time.Millisecond))
	defer func() { _ = f.SetReadDeadline(time.Time{}) }()
	n, err := WaitEvent(f)
	if err != nil {
		return 0
	}
	return n
}

// refusals returns the number of connections that the server is refusing.
func (f *fixture) refusals() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.refusing)
}
