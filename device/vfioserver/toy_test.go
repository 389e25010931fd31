package vfioserver_test

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// Registers of the toy in BAR 0, 4 bytes each but for the address.
const (
	toyScratch = 0x00 // 8 bytes
	toyAddr    = 0x10 // 8 bytes: bus address
	toyLen     = 0x18
	toyCommand = 0x1c
	toyVector  = 0x20
	toyDone    = 0x24 // DMA commands that are over
	toyFailed  = 0x28 // of those, failed
	toyResets  = 0x2c
	toyAcks    = 0x30 // INTx was unmasked
	toyBAR     = 8 << 10
	toyTable   = 0x1000
	toyPBA     = 0x1800
	toyVectors = 4
	toyBuffer  = 256 << 10
	toyVendor  = 0x1234
	toyDevice  = 0x70f0
)

// Commands of the toy.
const (
	toyRead  = 1 // toyLen bytes from toyAddr into the buffer
	toyWrite = 2 // the buffer, each byte plus one, to toyAddr; then MSI-X or MSI vector toyVector
	toyFire  = 3 // vector toyVector of MSI-X or MSI
	toyRaise = 4 // INTx
	toyLower = 5
)

// toy is a device of another process: a vfio-user server with DMA by messages.
type toy struct {
	vfiouser.NopHandler
	path   string
	server *vfiouser.Server

	mu     sync.Mutex
	cfg    *cfgspace.Space
	regs   [toyBAR]byte
	buf    []byte
	table  bool // answers in the MSI-X table
	strict bool // refuses accesses to BARs while memory decode is off
	noDMA  bool // refuses mappings without a descriptor
	most   uint64
	fixed  bool // BARs do not answer sizing

	held chan *vfiouser.Conn // see hold
	goOn chan struct{}
	arm  func()        // called before the server takes descriptors of MSI-X; nil: nothing
	gate chan struct{} // writes to the scratch registers wait until it is closed; nil: they do not
}

// newToy starts a server; change alters the toy before.
func newToy(t testing.TB, change func(*toy)) *toy {
	t.Helper()
	return newToyAt(t, socketPath(t), change)
}

// socketPath returns a path for a socket, which has at most 107 bytes.
func socketPath(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "toy")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// newToyAt is newToy at a path.
func newToyAt(t testing.TB, path string, change func(*toy)) *toy {
	t.Helper()
	d := &toy{path: path, buf: make([]byte, toyBuffer)}
	var err error
	d.cfg, err = cfgspace.NewEndpoint(cfgspace.Identity{Vendor: toyVendor, Device: toyDevice, Class: 0xff0000, InterruptPin: 1}).
		BAR(0, cfgspace.BAR{Kind: cfgspace.Memory32, Size: toyBAR}).
		Express(cfgspace.Express{
			Type: cfgspace.Endpoint, Generation: pcie.Gen3, Width: 1, MaxPayload: 512, FLR: true, ExtendedTag: true,
		}).
		Msi(2).Msix(toyVectors, 0, toyTable, 0, toyPBA).SerialNumber(0xabcdef).Build()
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(d)
	}
	const rw = vfiouser.RegionFlagRead | vfiouser.RegionFlagWrite
	cfg := vfiouser.Config{Resettable: true, ErrorReplies: true, Handler: d}
	cfg.Regions[0] = vfiouser.Region{Size: toyBAR, Flags: rw}
	cfg.Regions[vfiouser.RegionConfig] = vfiouser.Region{Size: pcie.ConfigSize, Flags: rw}
	cfg.IRQs[vfiouser.IRQINTx], cfg.IRQs[vfiouser.IRQMSI], cfg.IRQs[vfiouser.IRQMSIX] = 1, 4, toyVectors
	if d.server, err = vfiouser.NewServer(cfg); err != nil {
		t.Fatal(err)
	}
	ln, err := vfiouser.Listen(d.path)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { _ = d.server.Serve(context.Background(), ln) })
	t.Cleanup(func() {
		_ = d.server.Close()
		serving.Wait()
	})
	return d
}

func (d *toy) reg(at int) uint32       { return binary.LittleEndian.Uint32(d.regs[at:]) }
func (d *toy) setReg(at int, v uint32) { binary.LittleEndian.PutUint32(d.regs[at:], v) }

func (d *toy) get(at int) uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.reg(at)
}

// DMAMap takes mappings as the servers of other projects do.
func (d *toy) DMAMap(_ *vfiouser.Conn, m vfiouser.Mapping) error {
	switch {
	case d.noDMA && !m.InPlace:
		return unix.EINVAL
	case d.most > 0 && m.Size > d.most:
		return unix.ENOSPC
	}
	return nil
}

// IRQ notes that the client has seen INTx handled.
func (d *toy) IRQ(conn *vfiouser.Conn, c vfiouser.IRQChange) {
	if d.arm != nil && c.Index == vfiouser.IRQMSIX && c.Action == vfiouser.IRQArmed {
		d.arm()
	}
	d.mu.Lock()
	held := d.held
	if held != nil && c.Action == vfiouser.IRQDisarmed {
		d.held = nil
		d.mu.Unlock()
		held <- conn
		<-d.goOn
		d.mu.Lock()
	}
	defer d.mu.Unlock()
	if c.Index == vfiouser.IRQINTx && c.Action == vfiouser.IRQUnmasked {
		d.setReg(toyAcks, d.reg(toyAcks)+1)
	}
}

// hold makes the next command that disables interrupts wait for resume: it is the first of a
// reset. The connection comes when the command does.
func (d *toy) hold() (conn <-chan *vfiouser.Conn, resume func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held, d.goOn = make(chan *vfiouser.Conn, 1), make(chan struct{})
	return d.held, sync.OnceFunc(func() { close(d.goOn) })
}

// Reset resets everything but the counter of resets.
func (d *toy) Reset(_ *vfiouser.Conn, done func(error)) {
	d.mu.Lock()
	n := d.reg(toyResets) + 1
	clear(d.regs[:])
	d.setReg(toyResets, n)
	d.cfg.Reset(false)
	d.mu.Unlock()
	done(nil)
}

// Access answers at once; DMA goes on later.
func (d *toy) Access(c *vfiouser.Conn, a *vfiouser.Access) {
	if d.gate != nil && a.Write && a.Region == 0 && a.Offset == toyScratch {
		<-d.gate
	}
	d.mu.Lock()
	var after func()
	ok := true
	switch {
	case a.Region == vfiouser.RegionConfig:
		d.config(a)
	case d.strict && !d.cfg.MemoryEnabled(), !d.table && a.Offset >= toyTable:
		ok = false // the table is the client's
	case a.Write:
		copy(d.regs[a.Offset:], a.Data)
		if a.Offset == toyCommand {
			after = d.command(c, d.reg(toyCommand))
		}
	default:
		copy(a.Data, d.regs[a.Offset:])
	}
	d.mu.Unlock()
	if !ok {
		a.Fail(unix.EINVAL)
		return
	}
	a.Reply()
	if after != nil {
		after()
	}
}

func (d *toy) config(a *vfiouser.Access) {
	at := int(a.Offset)
	if !a.Write {
		copy(a.Data, d.cfg.Bytes()[at:])
		return
	}
	if d.fixed && at >= cfgspace.OffBAR0 && at < cfgspace.OffBAR0+24 {
		return
	}
	var v [4]byte
	copy(v[:], a.Data)
	d.cfg.Write(at, len(a.Data), binary.LittleEndian.Uint32(v[:]))
}

// command returns what to do when the write has been answered.
func (d *toy) command(c *vfiouser.Conn, what uint32) func() {
	addr := binary.LittleEndian.Uint64(d.regs[toyAddr:])
	buf := d.buf[:min(d.reg(toyLen), toyBuffer)]
	vector := d.reg(toyVector)
	end := func(err error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.setReg(toyDone, d.reg(toyDone)+1)
		if err != nil {
			d.setReg(toyFailed, d.reg(toyFailed)+1)
		}
	}
	fire := func() {
		if c.TriggerIRQ(vfiouser.IRQMSIX, vector) != nil {
			_ = c.TriggerIRQ(vfiouser.IRQMSI, vector)
		}
	}
	switch what {
	case toyRead:
		return func() {
			if err := c.DMARead(addr, buf, end); err != nil {
				end(err)
			}
		}
	case toyWrite:
		out := make([]byte, len(buf))
		for i := range buf {
			out[i] = buf[i] + 1
		}
		return func() {
			err := c.DMAWrite(addr, out, func(err error) {
				end(err)
				fire()
			})
			if err != nil {
				end(err)
			}
		}
	case toyFire:
		return fire
	case toyRaise, toyLower:
		return func() { _ = c.SetINTx(what == toyRaise) }
	}
	return nil
}
