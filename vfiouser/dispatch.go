package vfiouser

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/pcie"
)

// handlers are the commands that the server knows. Only servers send DMA_READ and
// DMA_WRITE, and the others are for migration.
var handlers = [...]func(c *Conn, m *message) error{
	CmdVersion: (*Conn).version, CmdDeviceGetInfo: (*Conn).deviceInfo, CmdDeviceReset: (*Conn).deviceReset,
	CmdDeviceFeature: func(*Conn, *message) error { return unix.ENOTTY }, // Linux's error for an unknown feature
	CmdGetRegionInfo: (*Conn).regionInfo, CmdGetRegionIOFDs: (*Conn).regionIOFDs,
	CmdRegionRead: (*Conn).regionRead, CmdRegionWrite: (*Conn).regionWrite, CmdRegionWriteMulti: (*Conn).regionWriteMulti,
	CmdDMAMap: (*Conn).dmaMap, CmdDMAUnmap: (*Conn).dmaUnmap,
	CmdGetIRQInfo: (*Conn).irqInfo, CmdSetIRQs: (*Conn).setIRQs,
}

// dispatch handles one message. The parsers check payloads; the server answers
// their errors with EINVAL.
func (c *Conn) dispatch(m *message) {
	if m.IsReply() {
		c.dmaReply(m)
		return
	}
	if !c.negotiated && m.Command != CmdVersion {
		c.refuse(m.Header, fmt.Errorf("vfiouser: %v before VERSION: %w", m.Command, unix.EINVAL))
		return
	}
	err := error(unix.ENOSYS)
	if int(m.Command) < len(handlers) && handlers[m.Command] != nil {
		err = handlers[m.Command](c, m)
	}
	if err != nil {
		c.refuse(m.Header, err)
	}
}

// invalid wraps the error of a parser with its number.
func invalid(err error) error { return fmt.Errorf("%w: %w", err, unix.EINVAL) }

func (c *Conn) version(m *message) error {
	if c.negotiated {
		return fmt.Errorf("vfiouser: second VERSION: %w", unix.EINVAL)
	}
	v, _, err := ParseVersion(m.body)
	if err != nil {
		return invalid(err)
	}
	if v.Major != 0 {
		return invalid(errVersionMajor)
	}
	ours := Version{Caps: Capabilities{MaxMsgFDs: MaxFDs, MaxDataXferSize: uint64(c.cfg.MaxData), WriteMultiple: c.cfg.WriteMultiple}}
	if c.cfg.MaxMaps != DefaultMaxMaps {
		ours.Caps.MaxDMAMaps = uint64(c.cfg.MaxMaps)
	}
	c.mu.Lock()
	c.caps = v.Caps
	c.dma.chunk = int(min(maxDMAChunk, v.Caps.maxData()))
	c.mu.Unlock()
	c.negotiated = true
	c.cfg.Handler.Connected(c)
	c.reply(m.Header, ours.Append)
	return nil
}

func (c *Conn) deviceInfo(m *message) error {
	if _, _, err := ParseDeviceInfo(m.body); err != nil {
		return invalid(err)
	}
	d := DeviceInfo{ArgSize: deviceInfoSize, Flags: DeviceFlagPCI, Regions: NumRegions, IRQs: NumIRQs}
	if c.cfg.Resettable {
		d.Flags |= DeviceFlagReset
	}
	c.reply(m.Header, func(b []byte) []byte {
		b = d.Append(b)
		if len(m.body) >= deviceInfoCapSize {
			b = append(b, make([]byte, deviceInfoCapSize-deviceInfoSize)...)
		}
		return b
	})
	return nil
}

func (c *Conn) regionInfo(m *message) error {
	req, _, err := ParseRegionInfo(m.body)
	if err != nil {
		return invalid(err)
	}
	if req.Index >= NumRegions {
		return fmt.Errorf("vfiouser: no region %d: %w", req.Index, unix.EINVAL)
	}
	r := &c.cfg.Regions[req.Index]
	info := RegionInfo{Flags: r.Flags, Index: req.Index, Size: r.Size}
	if r.File == nil || r.Size == 0 {
		info.ArgSize = uint32(info.fullSize())
		c.reply(m.Header, info.Append)
		return nil
	}
	info.Flags |= RegionFlagMmap
	info.Offset = r.FileOffset
	info.Sparse = r.Sparse
	info.ArgSize = uint32(info.fullSize())
	if req.ArgSize < info.ArgSize { // the client will ask again
		info.Sparse = nil
		c.reply(m.Header, info.Append)
		return nil
	}
	if len(info.Sparse) > 0 {
		info.Flags |= RegionFlagCaps
	}
	fd, err := fdOf(r.File)
	if err != nil {
		return err
	}
	c.reply(m.Header, info.Append, fd)
	return nil
}

func (c *Conn) regionIOFDs(m *message) error {
	req, _, err := ParseRegionIOFDs(m.body)
	if err != nil {
		return invalid(err)
	}
	if req.Index >= NumRegions {
		return fmt.Errorf("vfiouser: no region %d: %w", req.Index, unix.EINVAL)
	}
	c.reply(m.Header, RegionIOFDs{ArgSize: regionIOFDsSize, Index: req.Index}.Append)
	return nil
}

func (c *Conn) irqInfo(m *message) error {
	req, _, err := ParseIRQInfo(m.body)
	if err != nil {
		return invalid(err)
	}
	if req.Index >= NumIRQs {
		return fmt.Errorf("vfiouser: no interrupt index %d: %w", req.Index, unix.EINVAL)
	}
	info := IRQInfo{ArgSize: irqInfoSize, Flags: irqFlags[req.Index], Index: req.Index, Count: c.cfg.IRQs[req.Index]}
	c.reply(m.Header, info.Append)
	return nil
}

func (c *Conn) setIRQs(m *message) error {
	req, _, err := ParseIRQSet(m.body)
	if err != nil {
		return invalid(err)
	}
	c.fr.keep()
	change, err := c.irqs.set(req, m.fds)
	if err != nil {
		return err
	}
	c.cfg.Handler.IRQ(c, change)
	c.reply(m.Header, nil)
	return nil
}

func (c *Conn) dmaMap(m *message) error {
	req, _, err := ParseDMAMap(m.body)
	if err != nil {
		return invalid(err)
	}
	fd := -1
	switch len(m.fds) {
	case 0:
	case 1:
		fd = m.fds[0]
	default:
		return fmt.Errorf("vfiouser: dma map: %d descriptors: %w", len(m.fds), unix.EINVAL)
	}
	mapping, err := c.mem.add(req, fd)
	if err == nil {
		if err = c.cfg.Handler.DMAMap(c, mapping); err != nil {
			_, _ = c.mem.remove(DMAUnmap{Addr: req.Addr, Size: req.Size})
		}
	}
	if err != nil {
		if !c.mapRefused { // once: a VMM can make any number of them
			c.mapRefused = true
			c.cfg.Logger.Warn("the device cannot access some memory of the VMM", "err", err)
		}
		c.cfg.Handler.MapRefused(c, req.mapping(fd), err)
		return err
	}
	if fd >= 0 { // not the last reference to the file, which the mapping has
		_ = unix.Close(fd)
		c.fr.keep()
	}
	c.reply(m.Header, nil)
	return nil
}

func (c *Conn) dmaUnmap(m *message) error {
	req, _, err := ParseDMAUnmap(m.body)
	if err != nil {
		return invalid(err)
	}
	gone, err := c.mem.remove(req)
	if err != nil {
		return err
	}
	for _, g := range gone {
		c.cfg.Handler.DMAUnmap(c, g)
	}
	c.reply(m.Header, req.Append)
	return nil
}

func (c *Conn) deviceReset(m *message) error {
	if !c.cfg.Resettable {
		return unix.ENOSYS
	}
	a := c.accept(m, 0, 0)
	if a == nil {
		return nil
	}
	c.launch(a)
	c.cfg.Handler.Reset(c, func(err error) { c.answer(a, err) })
	return nil
}

// check returns an error unless the range lies in its region, which permits the
// access. No VMM makes such an access on behalf of a guest.
func (c *Conn) check(a RegionAccess, flag uint32) error {
	if a.Region < NumRegions {
		r := &c.cfg.Regions[a.Region]
		if r.Flags&flag != 0 && a.Offset <= r.Size && uint64(a.Count) <= r.Size-a.Offset {
			return nil
		}
	}
	c.srv.stats.failed.Add(1)
	return fmt.Errorf("vfiouser: no access to %d bytes at %#x of region %d: %w", a.Count, a.Offset, a.Region, unix.EINVAL)
}

func (c *Conn) regionRead(m *message) error {
	req, _, err := ParseRegionAccess(m.body)
	if err != nil {
		return invalid(err)
	}
	if req.Count > c.cfg.MaxData {
		return fmt.Errorf("vfiouser: read of %d bytes, at most %d: %w", req.Count, c.cfg.MaxData, unix.EINVAL)
	}
	if err := c.check(req, RegionFlagRead); err != nil {
		return err
	}
	a := c.accept(m, int(req.Count), 0)
	if a == nil {
		return nil
	}
	a.Region, a.Offset, a.Write = req.Region, req.Offset, false
	c.srv.stats.reads.Add(1)
	c.launch(a)
	switch req.Count {
	case 0:
		c.answer(a, nil)
	default:
		if !c.realized && req.Region == RegionConfig && req.Offset == 0 && req.Count >= pcie.ConfigSizePCI {
			c.realized = true
			a.hide = c.cfg.HideMSIXAtRealize
		}
		c.cfg.Handler.Access(c, a)
	}
	return nil
}

func (c *Conn) regionWrite(m *message) error {
	req, n, err := ParseRegionAccess(m.body)
	if err != nil {
		return invalid(err)
	}
	if uint64(req.Count) != uint64(len(m.body)-n) {
		return fmt.Errorf("vfiouser: write of %d bytes with %d of data: %w", req.Count, len(m.body)-n, unix.EINVAL)
	}
	return c.write(m, req, m.body[n:])
}

// write hands a write to the handler. A long posted write lies in the framer's
// buffer while the handler has it: a buffer of its own for each would keep the
// garbage collector busy.
func (c *Conn) write(m *message, req RegionAccess, data []byte) error {
	if err := c.check(req, RegionFlagWrite); err != nil {
		return err
	}
	lend := m.NoReply() && len(data) > keepBuffer
	own, lent := len(data), 0
	if lend {
		own, lent = 0, len(c.fr.buf)
	}
	a := c.accept(m, own, lent)
	if a == nil {
		return nil
	}
	if lend {
		a.Data = data
		defer c.settleLoan(a)
	} else {
		copy(a.Data, data)
	}
	a.Region, a.Offset, a.Write = req.Region, req.Offset, true
	if a.Posted {
		c.srv.stats.posted.Add(1)
	} else {
		c.srv.stats.writes.Add(1)
	}
	c.launch(a)
	switch req.Count {
	case 0:
		c.answer(a, nil)
	default:
		c.cfg.Handler.Access(c, a)
	}
	return nil
}

// settleLoan gives the framer's buffer to an access that the handler has not
// answered yet.
func (c *Conn) settleLoan(a *Access) {
	c.mu.Lock()
	held := a.state != accessFree // only this goroutine takes accesses from the free list
	c.mu.Unlock()
	if held {
		c.fr.replace()
	}
}

// regionWriteMulti hands over posted writes. QEMU asks for no reply; for clients
// that do, the reply means that the handler has the writes.
func (c *Conn) regionWriteMulti(m *message) error {
	if !c.cfg.WriteMultiple {
		return unix.ENOSYS
	}
	count, n, err := ParseMultiCount(m.body)
	if err != nil {
		return invalid(err)
	}
	for b := m.body[n:]; len(b) > 0; b = b[multiEntrySize:] { // before the first is handed over
		w, _, err := ParseMultiWrite(b)
		if err != nil {
			return invalid(err)
		}
		if err := c.check(w.access(), RegionFlagWrite); err != nil {
			return err
		}
	}
	posted := *m
	posted.Flags |= FlagNoReply
	for b := m.body[n:]; len(b) > 0; b = b[multiEntrySize:] {
		w, _, err := ParseMultiWrite(b)
		if err != nil {
			return invalid(err)
		}
		c.moreWrites = len(b) > multiEntrySize
		if err := c.write(&posted, w.access(), w.Data[:w.Count]); err != nil {
			return err
		}
	}
	c.moreWrites = false
	c.reply(m.Header, func(b []byte) []byte {
		return append(b, byte(count), byte(count>>8), 0, 0, 0, 0, 0, 0)
	})
	return nil
}
