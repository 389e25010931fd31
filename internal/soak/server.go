package soak

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"sync"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/bench/process"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// Registers of a device server, 4 bytes each except for the two addresses. The first of
// serverScratch checks the order of posted writes.
const (
	serverID      = 0x00
	serverFrom    = 0x08 // bus address, 8 bytes
	serverTo      = 0x10 // bus address, 8 bytes
	serverLength  = 0x18 // at most serverBuffer
	serverDo      = 0x1c // copies from one bus address to the other, then sends MSI-X vector 0
	serverDone    = 0x20 // number of copies that ended
	serverFailed  = 0x24 // number of those that failed
	serverScratch = 0x40
	serverTable   = 0x1000
	serverPBA     = 0x1800
	serverBAR     = 8 << 10

	serverBuffer = 128 << 10
	serverMagic  = 0x50a4_0001
)

// deviceServer is a vfio-user server outside of the box. Its device copies memory of the
// host by DMA messages.
type deviceServer struct {
	vfiouser.NopHandler
	numbers
	path    string
	serving process.Background
	server  *vfiouser.Server

	mu     sync.Mutex // guards the fields below
	config *cfgspace.Space
	page   [serverBAR]byte
	resets uint64 // a copy from before the last one has no effect
	irqs   uint64 // changes of the descriptors of interrupts
}

func newDeviceServer(path string) (*deviceServer, error) {
	d := &deviceServer{path: path}
	var err error
	d.config, err = cfgspace.NewEndpoint(cfgspace.Identity{Vendor: 0x1234, Device: 0x70f3, Class: 0xff0000}).
		BAR(0, cfgspace.BAR{Kind: cfgspace.Memory32, Size: serverBAR}).
		Express(cfgspace.Express{Type: cfgspace.Endpoint, Generation: pcie.Gen3, Width: 1, MaxPayload: 512, FLR: true, ExtendedTag: true}).
		Msix(1, 0, serverTable, 0, serverPBA).Build()
	return d, err
}

// start serves the socket.
func (d *deviceServer) start() error {
	const rw = vfiouser.RegionFlagRead | vfiouser.RegionFlagWrite
	cfg := vfiouser.Config{Resettable: true, ErrorReplies: true, Handler: d, Logger: slog.New(slog.DiscardHandler)}
	cfg.Regions[0] = vfiouser.Region{Size: serverBAR, Flags: rw}
	cfg.Regions[vfiouser.RegionConfig] = vfiouser.Region{Size: pcie.ConfigSize, Flags: rw}
	cfg.IRQs[vfiouser.IRQMSIX] = 1
	var err error
	if d.server, err = vfiouser.NewServer(cfg); err != nil {
		return err
	}
	ln, err := vfiouser.Listen(d.path)
	if err != nil {
		return err
	}
	d.reset()
	d.serving.Go(func(ctx context.Context) error { return d.server.Serve(ctx, ln) })
	return nil
}

func (d *deviceServer) stop() { _ = d.serving.Close() } // Serve returns the end of its context

func (d *deviceServer) reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.config.Reset(false)
	d.resets++
	clear(d.page[:])
	binary.LittleEndian.PutUint32(d.page[serverID:], serverMagic)
	d.restart()
}

// DMAMap accepts every mapping: the device uses messages.
func (d *deviceServer) DMAMap(*vfiouser.Conn, vfiouser.Mapping) error { return nil }

// Reset resets the device.
func (d *deviceServer) Reset(_ *vfiouser.Conn, done func(error)) {
	d.reset()
	done(nil)
}

// IRQ counts the changes: not while the server stands still.
func (d *deviceServer) IRQ(*vfiouser.Conn, vfiouser.IRQChange) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.irqs++
}

// Access answers at once and then begins a copy that the access asked for.
func (d *deviceServer) Access(c *vfiouser.Conn, a *vfiouser.Access) {
	d.mu.Lock()
	var do func()
	switch {
	case a.Region == vfiouser.RegionConfig && a.Write:
		var v [pcie.DW]byte
		copy(v[:], a.Data)
		d.config.Write(int(a.Offset), len(a.Data), binary.LittleEndian.Uint32(v[:]))
	case a.Region == vfiouser.RegionConfig:
		copy(a.Data, d.config.Bytes()[a.Offset:])
	case a.Write:
		copy(d.page[a.Offset:], a.Data)
		switch {
		case a.Offset == serverScratch && len(a.Data) == pcie.DW:
			d.note(binary.LittleEndian.Uint32(a.Data))
		case a.Offset == serverDo:
			do = d.copyLocked(c)
		}
	default:
		copy(a.Data, d.page[a.Offset:])
	}
	d.mu.Unlock()
	a.Reply()
	if do != nil {
		do()
	}
}

// copyLocked returns the copy that the registers describe.
func (d *deviceServer) copyLocked(c *vfiouser.Conn) func() {
	from, to := binary.LittleEndian.Uint64(d.page[serverFrom:]), binary.LittleEndian.Uint64(d.page[serverTo:])
	part := make([]byte, min(binary.LittleEndian.Uint32(d.page[serverLength:]), serverBuffer))
	resets := d.resets
	canceled := func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.resets != resets
	}
	end := func(err error) {
		d.mu.Lock()
		if d.resets != resets {
			d.mu.Unlock()
			return
		}
		add := func(at int) { binary.LittleEndian.PutUint32(d.page[at:], binary.LittleEndian.Uint32(d.page[at:])+1) }
		add(serverDone)
		if err != nil {
			add(serverFailed)
		}
		d.mu.Unlock()
		_ = c.TriggerIRQ(vfiouser.IRQMSIX, 0) // the driver looks at the counters too
	}
	return func() {
		err := c.DMARead(from, part, func(err error) {
			if err == nil && !canceled() {
				if err = c.DMAWrite(to, part, end); err == nil {
					return
				}
			}
			end(err)
		})
		if err != nil {
			end(err)
		}
	}
}

// serverReturns bounds the time until the box has found a server that was restarted.
const serverReturns = 20 * time.Second

// someServer returns one of the device servers.
func (c *cluster) someServer(choice uint64) (slot int, s *deviceServer) {
	var slots []int
	for slot, at := range c.slots {
		if at.server {
			slots = append(slots, slot)
		}
	}
	slot = slots[choice%uint64(len(slots))]
	c.mu.Lock()
	defer c.mu.Unlock()
	return slot, c.servers[slot]
}

// stallServer lets one of the device servers stand still for the duration of during.
func (c *cluster) stallServer(choice uint64, during func()) {
	_, s := c.someServer(choice)
	s.mu.Lock()
	defer s.mu.Unlock()
	during()
}

// restartServer kills one of the device servers, starts it again, and waits until its
// box has found it.
func (c *cluster) restartServer(choice uint64) error {
	slot, s := c.someServer(choice)
	healthy := func() bool {
		_, box := c.ends(slot)
		return box.GetHealth() == dxpuv1.Health_HEALTH_OK
	}
	s.stop()
	noticed := c.until(serverReturns, func() bool { return !healthy() })
	if err := s.start(); err != nil {
		return err
	}
	if !noticed {
		return fmt.Errorf("slot %d: %v after the end of the server, the box reports no failure", slot, serverReturns)
	}
	if !c.until(serverReturns, healthy) {
		_, box := c.ends(slot)
		return fmt.Errorf("slot %d: %v after the server returned, the box reports %s", slot, serverReturns, box.GetHealthDetail())
	}
	return nil
}

const _ = uint(serverTable - serverScratch - 4*reg.ScratchCount) // the scratch registers end before the table
