package vfioserver_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/vfioserver"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// startDevice makes the device of a server and runs it until the test ends.
func startDevice(t *testing.T, spec vfioserver.Spec) *vfioserver.Device {
	t.Helper()
	dev := vfioserver.New(t.Context(), spec, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { dev.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return dev
}

func TestDeviceServerRefused(t *testing.T) {
	for _, c := range []struct {
		name, want string
		change     func(*toy)
		messageDMA bool
	}{
		{"fine", "", nil, false},
		{"no mapping without a descriptor", "no DMA by messages", func(d *toy) { d.noDMA = true }, false},
		{"small mappings only", "", func(d *toy) { d.most = 8 << 40 }, false},
		{"as QEMU's", "x-vfio-user-server", func(d *toy) { d.strict, d.table = true, true }, false},
		{"strict, but known", "", func(d *toy) { d.strict, d.table = true, true }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newToy(t, c.change)
			dev := startDevice(t, vfioserver.Spec{Socket: d.path, MessageDMA: c.messageDMA})
			ok, why := dev.Check()
			if ok != (c.want == "") || !strings.Contains(why, c.want) {
				t.Fatalf("works: %v (%s), want a reason with %q", ok, why, c.want)
			}
			if !ok {
				return
			}
			want := device.Info{Model: "vfio-user device 1234:70f0", Serial: "0000000000abcdef", Vendor: toyVendor, Device: toyDevice}
			want.BARs[0] = pcie.BAR{Size: toyBAR}
			if got := dev.Info(); got != want {
				t.Errorf("info %+v, want %+v", got, want)
			}
		})
	}
}

// A device without a server is unhealthy and answers nothing; it works once the
// server is there.
func TestAbsentServerIsFound(t *testing.T) {
	path := socketPath(t)
	dev := startDevice(t, vfioserver.Spec{Socket: path})
	ok, why := dev.Check()
	if ok || !strings.Contains(why, path) {
		t.Errorf("without a server the device works: %v (%s)", ok, why)
	}
	if !dev.Receive(0, &tlp.Packet{Type: tlp.CfgRd0, Length: 1, FirstBE: 0xf}) {
		t.Error("without a server the device refuses a TLP")
	}
	dev.Transmit(0, func(p *tlp.Packet) bool { t.Errorf("it emits %v", p.Type); return true })
	dev.Reset(0, device.ConventionalReset)
	if n, limit := dev.TagsInUse(); n != 0 || limit != 0 || dev.Wake() != machine.Never {
		t.Errorf("%d of %d tags, wakes at %v", n, limit, dev.Wake())
	}
	newToyAt(t, path, nil)
	awaitCheck(t, dev, true)
	if id := dev.Info().Device; id != toyDevice {
		t.Errorf("device ID %#x", id)
	}
}

// A box does not wait long for a server that takes a connection and does not answer.
// The device works once the server does.
func TestMuteServerIsFound(t *testing.T) {
	path := socketPath(t)
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dev := startDevice(t, vfioserver.Spec{Socket: path})
	if ok, why := dev.Check(); ok || !strings.Contains(why, "no connection within") {
		t.Errorf("with a mute server the device works: %v (%s)", ok, why)
	}
	if err := ln.Close(); err != nil {
		t.Error(err)
	}
	newToyAt(t, path, nil)
	awaitCheck(t, dev, true)
}

// A server that restarts loses the state of its device. Check reports the failure
// even if the new server is there before it looks.
func TestRestartIsReported(t *testing.T) {
	d := newToy(t, nil)
	dev := startDevice(t, vfioserver.Spec{Socket: d.path})
	awaitCheck(t, dev, true)
	if err := d.server.Close(); err != nil {
		t.Fatal(err)
	}
	again := newToyAt(t, d.path, nil)
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for deadline := time.After(20 * time.Second); again.get(toyResets) == 0; { // a new connection resets
		select {
		case <-look.C:
		case <-deadline:
			t.Fatal("the device does not connect again")
		}
	}
	if ok, why := dev.Check(); ok || !strings.Contains(why, "gone") {
		t.Errorf("the device works: %v (%s), want the loss of the first server", ok, why)
	}
	awaitCheck(t, dev, true)
}

// awaitCheck waits until the device works, or does not. The device connects in
// another goroutine, without a notification, so awaitCheck polls.
func awaitCheck(t *testing.T, dev *vfioserver.Device, want bool) {
	t.Helper()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for deadline := time.After(20 * time.Second); ; {
		ok, why := dev.Check()
		if ok == want {
			return
		}
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("the device works: %v (%s), want %v", ok, why, want)
		}
	}
}

func TestDeviceServerConfig(t *testing.T) {
	h := newTLPHost(t, newToy(t, func(d *toy) { d.fixed = true }))
	if id := h.configRead(0); id != toyDevice<<16|toyVendor {
		t.Errorf("ID %#x", id)
	}
	h.configWrite(cfgspace.OffBAR0, 4, 0xffffffff)
	if v := h.configRead(cfgspace.OffBAR0); v != 1<<32-toyBAR {
		t.Errorf("BAR 0 sizes as %#x", v)
	}
	h.configWrite(cfgspace.OffBAR0, 4, barBase)
	h.configWrite(cfgspace.OffBAR0+4, 4, 0xffffffff)
	h.configWrite(cfgspace.OffROM, 4, 0xfffff800)
	for off, want := range map[int]uint32{cfgspace.OffBAR0: barBase, cfgspace.OffBAR0 + 4: 0, cfgspace.OffROM: 0} {
		if v := h.configRead(off); v != want {
			t.Errorf("register %#x is %#x, want %#x", off, v, want)
		}
	}
	h.configWrite(cfgspace.OffIntLine, 1, 0x5a)
	if v := h.configRead(cfgspace.OffIntLine); v != 0x15a {
		t.Errorf("interrupt line and pin %#x, want 0x15a", v)
	}
}

func TestDeviceServerMemory(t *testing.T) {
	h := newTLPHost(t, newToy(t, nil))
	p := tlp.Packet{Type: tlp.MWr, Data: []byte{1, 2, 3, 4, 5, 6, 7, 8}, Length: 2, FirstBE: 0b1001, LastBE: 0b0110}
	p.SetAddr(barBase)
	h.dev.Receive(0, &p)
	data, status := h.read(0, 8)
	if want := []byte{1, 0, 0, 4, 0, 6, 7, 0}; status != pcie.SuccessfulCompletion || !bytes.Equal(data, want) {
		t.Errorf("byte enables: %v %x, want %x", status, data, want)
	}
	if data, status = h.read(3, 3); status != pcie.SuccessfulCompletion || !bytes.Equal(data, []byte{0, 0, 0, 4, 0, 6, 0, 0}) {
		t.Errorf("three bytes: %v %x", status, data)
	}
	if data, status := h.read(0, 0); status != pcie.SuccessfulCompletion || len(data) != 4 {
		t.Errorf("zero-length read: %v %x", status, data)
	}
	if data, status := h.read(0, 1024); status != pcie.SuccessfulCompletion || len(data) != 1024 {
		t.Errorf("long read: %v, %d bytes", status, len(data))
	}
	if _, status := h.read(toyTable+16*toyVectors, 4); status != pcie.UnsupportedRequest {
		t.Errorf("refused by the server: %v", status)
	}
	if _, status := h.read(toyBAR, 4); status != pcie.UnsupportedRequest {
		t.Errorf("outside the BAR: %v", status)
	}
	for _, bad := range []func(*tlp.Packet){
		func(p *tlp.Packet) { p.EP = true },
		func(p *tlp.Packet) { p.SetECRC(); p.Digest++ },
	} {
		p := tlp.Packet{Type: tlp.MWr, Data: []byte{9, 9, 9, 9}}
		p.SetMemory(barBase, 4)
		bad(&p)
		h.dev.Receive(0, &p)
		if v := h.read32(0); v != 0x04000001 {
			t.Errorf("bad data are stored: %#x", v)
		}
	}
	poisoned := tlp.Packet{Type: tlp.CfgWr0, EP: true, Length: 1, Target: 0x100, Register: cfgspace.OffIntLine, FirstBE: 1, Data: []byte{7, 0, 0, 0}}
	if _, status := h.request(&poisoned); status != pcie.UnsupportedRequest || h.configRead(cfgspace.OffIntLine)&0xff == 7 {
		t.Errorf("poisoned configuration write: %v", status)
	}
	for _, typ := range []tlp.Type{tlp.IORd, tlp.MRdLk} {
		p := tlp.Packet{Type: typ, Length: 1, FirstBE: 0xf, Addr: barBase}
		if _, status := h.request(&p); status != pcie.UnsupportedRequest {
			t.Errorf("%v: %v", typ, status)
		}
	}
}

// The box makes the TLPs of a server's DMA: their sizes are those of the network and
// of the device's capabilities, whatever the host writes into Device Control. DMA
// waits for a link that is full.
func TestDeviceServerDMA(t *testing.T) {
	d := newToy(t, nil)
	h := newTLPHost(t, d)
	const express = 0x40
	h.configWrite(express+cfgspace.OffDevCtl, 2, 0) // MPS and MRRS 128, no extended tags
	if n, limit := h.dev.TagsInUse(); n != 0 || limit != 256 {
		t.Errorf("%d of %d tags in use, want 0 of 256", n, limit)
	}
	copy(h.memory, bytes.Repeat([]byte{7}, 4096))
	h.write32(toyAddr, memoryBase+8)
	h.write32(toyLen, 4000)
	h.closed = true
	h.write32(toyCommand, toyRead)
	h.dev.Transmit(h.now(), h.take)
	h.closed = false
	h.until("the read", func() bool { return d.get(toyDone) == 1 })
	if !slices.Equal(h.asked, []int{4000}) || d.get(toyFailed) != 0 {
		t.Errorf("requests of %d bytes, %d failed", h.asked, d.get(toyFailed))
	}
	h.write32(toyAddr, memoryBase+8193)
	h.write32(toyCommand, toyWrite)
	h.until("the write", func() bool { return d.get(toyDone) == 2 })
	if want := bytes.Repeat([]byte{8}, 4000); !bytes.Equal(h.memory[8193:8193+4000], want) {
		t.Error("other bytes arrived")
	}
	if most := slices.Max(h.wrote); most != 512 { // Max_Payload_Size Supported of the toy
		t.Errorf("writes of up to %d bytes, want 512", most)
	}
	h.write32(toyAddr, 0x1000) // refused by the host
	h.write32(toyCommand, toyRead)
	h.until("the refused read", func() bool { return d.get(toyDone) == 3 })
	if d.get(toyFailed) != 1 {
		t.Error("a read that the host refused worked")
	}
}

func TestDeviceServerFunctionLevelReset(t *testing.T) {
	d := newToy(t, nil)
	h := newTLPHost(t, d)
	h.enableMSIX()
	h.write32(toyScratch, 5)
	before := d.get(toyResets)
	h.configWrite(0x40+cfgspace.OffDevCtl, 2, cfgspace.DevCtlFLR)
	if got := d.get(toyResets); got != before+1 {
		t.Errorf("answered after %d resets", got-before)
	}
	if v := h.configRead(cfgspace.OffBAR0); v != 0 {
		t.Errorf("BAR 0 is %#x after the reset", v)
	}
	if _, status := h.read(toyScratch, 4); status != pcie.UnsupportedRequest {
		t.Errorf("memory decode after the reset: %v", status)
	}
	h.configWrite(cfgspace.OffBAR0, 4, barBase)
	h.configWrite(cfgspace.OffCommand, 2, cfgspace.CmdMemory)
	if v := h.read32(toyTable + 12); v != 1 {
		t.Errorf("vector control %#x after the reset, want masked", v)
	}
}

// A reset drops the output of open requests and answers those of the server.
func TestDeviceServerResetUnderWay(t *testing.T) {
	d := newToy(t, nil)
	h := newTLPHost(t, d)
	h.closed = true
	h.write32(toyAddr, memoryBase)
	h.write32(toyLen, 65536)
	h.write32(toyCommand, toyRead)
	p := tlp.Packet{Type: tlp.MRd}
	p.SetMemory(barBase, 4)
	h.dev.Receive(h.now(), &p)
	h.until("the request", func() bool { return d.server.Stats().DMAMessages > 0 })
	h.dev.Reset(h.now(), device.ConventionalReset)
	h.closed, h.replies, h.asked = false, nil, nil
	h.until("the end of the DMA", func() bool { return d.get(toyDone) == 1 || d.get(toyResets) > 1 })
	if len(h.asked) != 0 || len(h.replies) != 0 {
		t.Errorf("%d reads and %d completions of before the reset", len(h.asked), len(h.replies))
	}
}

// Until the server has reset, it works for the former tenant: its DMA does not reach the
// next one, who may be a bus master by then.
func TestFormerTenantReachesNothing(t *testing.T) {
	d := newToy(t, nil)
	h := newTLPHost(t, d)
	held, resume := d.hold()
	defer resume()
	h.dev.Reset(h.now(), device.ConventionalReset)
	var conn *vfiouser.Conn
	h.until("the begin of the reset", func() bool {
		select {
		case conn = <-held:
			return true
		default:
			return false
		}
	})
	for _, p := range []tlp.Packet{
		{Register: cfgspace.OffBAR0, Data: binary.LittleEndian.AppendUint32(nil, barBase)},
		{Register: cfgspace.OffCommand, Data: []byte{cfgspace.CmdMemory | cfgspace.CmdBusMaster, 0, 0, 0}},
	} {
		p.Type, p.Length, p.Target, p.FirstBE = tlp.CfgWr0, 1, 0x100, 0xf
		if !h.dev.Receive(h.now(), &p) {
			t.Fatal("a configuration write is refused")
		}
	}
	h.wrote, h.replies = nil, nil
	start := func() <-chan error {
		over := make(chan error, 1)
		if err := conn.DMAWrite(memoryBase, []byte{1, 2, 3, 4}, func(err error) { over <- err }); err != nil {
			t.Fatal(err)
		}
		return over
	}
	end := func(over <-chan error) (err error) {
		h.until("the end of the DMA", func() bool {
			select {
			case err = <-over:
				return true
			default:
				return false
			}
		})
		return err
	}
	over := start()
	resume()
	if err := end(over); err == nil || len(h.wrote) != 0 {
		t.Errorf("DMA before the end of the reset: %v, %d writes", err, len(h.wrote))
	}
	h.until("the configuration writes", func() bool { return len(h.replies) == 2 })
	if err := end(start()); err != nil || len(h.wrote) != 1 {
		t.Errorf("DMA after the reset: %v, %d writes", err, len(h.wrote))
	}
}

// The goroutine that brings a read may poll for its answer, without others.
func TestPolledRead(t *testing.T) {
	d := newToy(t, nil)
	h := newTLPHost(t, d)
	h.write32(toyScratch, 0x11223344)
	_ = h.read32(toyScratch) // behind the write: no other request is under way
	polled := false
	for i := range 100 {
		p := tlp.Packet{Type: tlp.MRd, Tag: pcie.Tag(i)}
		p.SetMemory(barBase+toyScratch, 4)
		h.replies = nil
		h.dev.Receive(h.now(), &p)
		for deadline := time.Now().Add(10 * time.Second); len(h.replies) == 0; {
			polled = h.dev.Poll() || polled
			h.dev.Transmit(h.now(), h.take)
			if time.Now().After(deadline) {
				t.Fatal("no answer")
			}
		}
		if got := binary.LittleEndian.Uint32(h.replies[0].Data); got != 0x11223344 {
			t.Fatalf("read %#x", got)
		}
	}
	if h.dev.Due() {
		t.Error("an answer is due though all have come")
	}
	if !polled {
		t.Error("no answer was polled")
	}
}
