package vfiouser

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

var bg = context.Background()

// client connects a client to the fixture.
func (f *fixture) client(cfg ClientConfig) (*Client, *Conn) {
	f.tb.Helper()
	c, err := Dial(bg, f.path, cfg)
	if err != nil {
		f.tb.Fatal(err)
	}
	f.tb.Cleanup(func() { _ = c.Close() })
	return c, <-f.dev.connected
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func TestClientAgainstServer(t *testing.T) {
	mem, _ := memfd(t, testBAR2)
	f := serve(t, func(c *Config) {
		c.Regions[2].File = mem
		c.Regions[2].Sparse = []SparseArea{{0, 0x1000}, {0x4000, 0x1000}, {0x8000, 0x1000}}
	})
	c, _ := f.client(ClientConfig{})

	d, err := c.DeviceInfo(bg)
	if want := (DeviceInfo{16, DeviceFlagPCI | DeviceFlagReset, 9, 5}); err != nil || d != want {
		t.Errorf("device info %+v %v", d, err)
	}
	r, file, err := c.RegionInfo(bg, 0)
	if err != nil || r.Size != testBAR0 || file != nil {
		t.Errorf("region 0: %+v %v %v", r, file, err)
	}
	r, file, err = c.RegionInfo(bg, 2)
	if err != nil || len(r.Sparse) != 3 || r.Sparse[2] != (SparseArea{0x8000, 0x1000}) || file == nil {
		t.Fatalf("region 2: %+v %v %v", r, file, err)
	}
	must(t, file.Close())
	if i, err := c.IRQInfo(bg, IRQMSIX); err != nil || i.Count != 64 {
		t.Errorf("irq info %+v %v", i, err)
	}
	if _, err := c.IRQInfo(bg, 9); !errors.Is(err, unix.EINVAL) {
		t.Errorf("no such index: %v", err)
	}
	if _, err := c.Feature(bg, Feature{Flags: 1 | FeatureProbe}); !errors.Is(err, unix.ENOTTY) {
		t.Errorf("feature: %v", err)
	}

	big := make([]byte, testBAR2)
	for i := range big {
		big[i] = byte(i * 3)
	}
	must(t, c.RegionWrite(bg, 2, 0, big))
	got := make([]byte, len(big))
	must(t, c.RegionRead(bg, 2, 0, got))
	if !bytes.Equal(got, big) {
		t.Error("1 MiB: wrong data")
	}
	must(t, c.PostWrite(2, 10, []byte("posted")))
	must(t, c.PostWrites([]MultiWrite{{Offset: 16, Region: 2, Count: 5, Data: [8]byte{'m', 'u', 'l', 't', 'i'}}}))
	must(t, c.RegionRead(bg, 2, 10, got[:11]))
	if string(got[:11]) != "postedmulti" {
		t.Errorf("%q", got[:11])
	}
	must(t, c.Reset(bg))

	must(t, c.DMAMap(bg, DMAMap{Flags: 3, Addr: 1 << 32, Size: testBAR2}, mem))
	must(t, c.DMAUnmap(bg, 1<<32, testBAR2))
	if err := c.DMAUnmap(bg, 1<<32, testBAR2); err != nil { // twice is as good as once
		t.Errorf("second unmap: %v", err)
	}
}

func TestClientPipelines(t *testing.T) {
	f := serve(t)
	c, _ := f.client(ClientConfig{MaxOpen: 64})
	var wg sync.WaitGroup
	for i := range 8 { // many goroutines
		wg.Go(func() {
			p, q := make([]byte, 8), make([]byte, 8)
			for j := range 200 {
				binary.LittleEndian.PutUint64(p, uint64(i<<32|j))
				if err := c.RegionWrite(bg, 0, uint64(i*8), p); err != nil {
					t.Error(err)
				}
				if err := c.RegionRead(bg, 0, uint64(i*8), q); err != nil || !bytes.Equal(p, q) {
					t.Errorf("% x, want % x: %v", q, p, err)
				}
			}
		})
	}
	wg.Wait()
	hold := f.dev.holding(0)
	done := make(chan error, 64)
	bufs := make([][4]byte, 64)
	for i := range bufs { // many in one
		must(t, c.StartRead(0, uint64(i), bufs[i][:], into(done)))
	}
	if err := c.StartWrite(0, 0, []byte{1}, into(done)); !errors.Is(err, ErrQueueFull) {
		t.Errorf("one too many: %v", err)
	}
	open := make([]*Access, 0, 64)
	for range 64 {
		open = append(open, <-hold)
	}
	for i := range open { // answered backwards
		a := open[len(open)-1-i]
		a.Data[0] = byte(a.Offset)
		a.Reply()
	}
	for range bufs {
		must(t, waitErr(t, done))
	}
	for i := range bufs {
		if bufs[i][0] != byte(i) {
			t.Errorf("read %d has %d", i, bufs[i][0])
		}
	}
}

func TestClientInterrupts(t *testing.T) {
	f := serve(t)
	c, conn := f.client(ClientConfig{})
	evs := make([]*os.File, 40) // three messages of up to 16 descriptors
	for i := range evs {
		evs[i] = event(t)
	}
	must(t, c.ArmIRQs(bg, IRQMSIX, 3, evs))
	for i, ev := range evs {
		must(t, conn.TriggerIRQ(IRQMSIX, uint32(3+i)))
		if n, err := WaitEvent(ev); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	f.dev.mu.Lock()
	last := f.dev.changes[len(f.dev.changes)-1]
	f.dev.mu.Unlock()
	if last != (IRQChange{IRQMSIX, 0, 43, IRQUnmasked}) {
		t.Errorf("last change %+v, want the unmasking that QEMU's server needs", last)
	}
	must(t, c.ArmIRQs(bg, IRQINTx, 0, evs[:1]))
	must(t, conn.SetINTx(true))
	must(t, c.UnmaskINTx(bg))
	if n := signals(evs[0]); n != 2 {
		t.Errorf("INTx fired %d times, want 2", n)
	}
	must(t, c.DisableIRQs(bg, IRQMSIX))
	if err := conn.TriggerIRQ(IRQMSIX, 3); !errors.Is(err, ErrNotArmed) {
		t.Error(err)
	}
}

func TestClientDMA(t *testing.T) {
	guest := make([]byte, 1<<20)
	var mu sync.Mutex
	handler := DMAFunc(func(_ *Client, r *DMARequest) {
		go func() { // from any goroutine
			mu.Lock()
			defer mu.Unlock()
			switch {
			case r.Addr+uint64(len(r.Data)) > uint64(len(guest)):
				r.Fail(unix.EFAULT)
				return
			case r.Write:
				copy(guest[r.Addr:], r.Data)
			default:
				copy(r.Data, guest[r.Addr:])
			}
			r.Reply()
		}()
	})
	f := serve(t)
	c, conn := f.client(ClientConfig{DMA: handler})
	must(t, c.DMAMap(bg, DMAMap{Flags: 3, Addr: 0, Size: 2 << 20}, nil))
	data := bytes.Repeat([]byte("0123456789abcdef"), 10_000)
	done := make(chan error, 1)
	must(t, conn.DMAWrite(77, data, into(done)))
	must(t, waitErr(t, done))
	got := make([]byte, len(data))
	must(t, conn.DMARead(77, got, into(done)))
	must(t, waitErr(t, done))
	if !bytes.Equal(got, data) {
		t.Error("wrong data")
	}
	must(t, conn.DMARead(1<<20, got, into(done)))
	if err := waitErr(t, done); !errors.Is(err, unix.EFAULT) {
		t.Errorf("beyond: %v", err)
	}
	must(t, conn.SignalMSI(0xfee00000, 1, into(done)))
	if err := waitErr(t, done); !errors.Is(err, unix.EFAULT) {
		t.Errorf("interrupt: %v", err)
	}
}

func TestClientWithoutDMAHandler(t *testing.T) {
	f := serve(t)
	_, conn := f.client(ClientConfig{})
	done := make(chan error, 1)
	must(t, conn.SignalMSI(0xfee00000, 1, into(done)))
	if err := waitErr(t, done); !errors.Is(err, unix.ENODEV) {
		t.Error(err)
	}
}

func TestListen(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	ln, err := Listen(path)
	must(t, err)
	if _, err := Listen(path); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a live socket: %v", err)
	}
	ln.SetUnlinkOnClose(false)
	must(t, ln.Close())
	ln, err = Listen(path) // the dead file is replaced
	must(t, err)
	must(t, ln.Close())
	must(t, os.WriteFile(path, []byte("precious"), 0o600))
	if _, err := Listen(path); err == nil {
		t.Error("an ordinary file was replaced")
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	cfg, dev := testConfig()
	srv, err := NewServer(cfg)
	must(t, err)
	path := filepath.Join(tempDir(t), "s")
	ln, err := Listen(path)
	must(t, err)
	ctx, cancel := context.WithCancel(bg)
	result := make(chan error, 1)
	go func() { result <- srv.Serve(ctx, ln) }()
	c, err := Dial(bg, path, ClientConfig{})
	must(t, err)
	defer c.Close()
	<-dev.connected
	cancel()
	if err := waitErr(t, result); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := <-dev.disconnected; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	<-c.Done()
	if _, err := net.Dial("unix", path); err == nil || srv.Conn() != nil {
		t.Error("still there")
	}
}

// TestForeignServer drives the device of a foreign server: start one (a sample of
// libvfio-user, a QEMU with x-vfio-user-server) and name its socket.
func TestForeignServer(t *testing.T) {
	path := os.Getenv("DXPU_VFIOUSER_SERVER")
	if path == "" {
		t.Skip("set DXPU_VFIOUSER_SERVER to the socket of a vfio-user device server to test against it")
	}
	c, err := Dial(bg, path, ClientConfig{})
	must(t, err)
	defer c.Close()
	d, err := c.DeviceInfo(bg)
	must(t, err)
	t.Logf("%+v, capabilities %+v, twin socket %v", d, c.Capabilities(), c.Twin())
	for i := range d.Regions {
		r, file, err := c.RegionInfo(bg, i)
		t.Logf("region %d: %+v %v", i, r, err)
		if file != nil {
			must(t, file.Close())
		}
	}
	for i := range d.IRQs {
		info, err := c.IRQInfo(bg, i)
		t.Logf("interrupt %d: %+v %v", i, info, err)
		if err == nil && i == IRQMSIX && info.Count > 0 {
			must(t, c.ArmIRQs(bg, i, 0, []*os.File{event(t)}))
			must(t, c.DisableIRQs(bg, i))
		}
	}
	id := make([]byte, 256)
	must(t, c.RegionRead(bg, RegionConfig, 0, id))
	if bytes.HasPrefix(id, []byte{0xff, 0xff}) {
		t.Errorf("configuration space % x", id[:64])
	}
	mem, _ := memfd(t, 1<<20)
	must(t, c.DMAMap(bg, DMAMap{Flags: 3, Addr: 0, Size: 1 << 20}, mem))
	must(t, c.DMAUnmap(bg, 0, 1<<20))
	if d.Flags&DeviceFlagReset != 0 {
		must(t, c.Reset(bg))
	}
}

func TestErrorsSayWhat(t *testing.T) {
	for want, err := range map[string]error{
		"DMA_MAP: refused by the peer":                    &RemoteError{Command: CmdDMAMap},
		"invalid argument":                                &RemoteError{Command: CmdDMAMap, Errno: unix.EINVAL},
		"dma write of 4 bytes at 0x10: not mapped":        &MemoryError{Addr: 16, Len: 4, Write: true, Reason: ErrUnmapped},
		"dma read of 4 bytes at 0x10: no memory behind":   &MemoryError{Addr: 16, Len: 4, Reason: ErrFault},
		"vfiouser: protocol: lost":                        &ProtocolError{"lost"},
		"COMMAND_99":                                      &RemoteError{Command: 99},
		"vfiouser: queue of DMA messages is full":         ErrQueueFull,
		"vfiouser: interrupt vector is not armed":         ErrNotArmed,
		"vfiouser: dma read of 1 bytes at 0x0: not permi": &MemoryError{Len: 1, Reason: ErrPermission},
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	for err, want := range map[error]unix.Errno{
		ErrTimeout: unix.ETIMEDOUT, ErrUnmapped: unix.ENODEV, ErrPermission: unix.EACCES, io.EOF: unix.EIO,
		&RemoteError{Errno: unix.EPERM}: unix.EPERM, &RemoteError{}: unix.EIO,
	} {
		if got := errnoOf(err); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}
