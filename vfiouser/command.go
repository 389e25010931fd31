package vfiouser

import (
	"context"
	"errors"
	"fmt"
	"os"
)

const (
	// maxRegions and maxIRQs bound a server's counts (QEMU's bounds).
	maxRegions = 100
	maxIRQs    = 50
	// maxRegionArg bounds the argsz that a second request offers.
	maxRegionArg = 4096
)

// DeviceInfo asks for the device's flags and counts.
func (c *Client) DeviceInfo(ctx context.Context) (DeviceInfo, error) {
	body, err := c.ask(ctx, CmdDeviceGetInfo, DeviceInfo{ArgSize: deviceInfoSize}.Append(nil))
	if err != nil {
		return DeviceInfo{}, err
	}
	d, _, err := ParseDeviceInfo(body)
	if err != nil {
		return DeviceInfo{}, err
	}
	if d.Regions > maxRegions || d.IRQs > maxIRQs {
		return DeviceInfo{}, &ProtocolError{fmt.Sprintf("a device with %d regions and %d interrupt indexes", d.Regions, d.IRQs)}
	}
	return d, nil
}

// RegionInfo asks about a region, and asks again when its capabilities did not
// fit. The file is the mappable memory, or nil; the caller closes it. A server that is not
// trusted chooses what it is, and the close may wait for the server: see RegionSize.
func (c *Client) RegionInfo(ctx context.Context, index uint32) (RegionInfo, *os.File, error) {
	r, fds, err := c.regionInfo(ctx, index)
	if err != nil || len(fds) == 0 {
		c.main.sock.trash.Close(fds)
		return r, nil, err
	}
	c.main.sock.trash.Close(fds[1:])
	return r, os.NewFile(uintptr(fds[0]), fmt.Sprintf("region %d", index)), nil
}

// RegionSize asks for the size of a region in bytes. It does not wait for a file that the
// server sends beside it.
func (c *Client) RegionSize(ctx context.Context, index uint32) (uint64, error) {
	r, fds, err := c.regionInfo(ctx, index)
	c.main.sock.trash.Close(fds)
	return r.Size, err
}

func (c *Client) regionInfo(ctx context.Context, index uint32) (RegionInfo, []int, error) {
	for argsz := uint32(regionInfoSize); ; {
		body, fds, err := c.roundTrip(ctx, CmdGetRegionInfo, RegionInfo{ArgSize: argsz, Index: index}.Append(nil), nil)
		if err != nil {
			return RegionInfo{}, nil, err
		}
		r, _, err := ParseRegionInfo(body)
		if err == nil && r.ArgSize > argsz && argsz == regionInfoSize && r.ArgSize <= maxRegionArg {
			c.main.sock.trash.Close(fds)
			argsz = r.ArgSize
			continue
		}
		if err == nil && r.Index != index {
			err = &ProtocolError{fmt.Sprintf("information on region %d instead of %d", r.Index, index)}
		}
		return r, fds, err
	}
}

// IRQInfo asks about an interrupt index.
func (c *Client) IRQInfo(ctx context.Context, index uint32) (IRQInfo, error) {
	body, err := c.ask(ctx, CmdGetIRQInfo, IRQInfo{ArgSize: irqInfoSize, Index: index}.Append(nil))
	if err != nil {
		return IRQInfo{}, err
	}
	i, _, err := ParseIRQInfo(body)
	return i, err
}

// Feature gets, sets or probes a device feature.
func (c *Client) Feature(ctx context.Context, f Feature) (Feature, error) {
	if f.ArgSize == 0 {
		f.ArgSize = uint32(featureSize + len(f.Data))
	}
	body, err := c.ask(ctx, CmdDeviceFeature, f.Append(nil))
	if err != nil {
		return Feature{}, err
	}
	f, _, err = ParseFeature(body)
	return f, err
}

// Reset resets the device.
func (c *Client) Reset(ctx context.Context) error {
	_, err := c.ask(ctx, CmdDeviceReset, nil)
	return err
}

// DMAMap lets the device access a range of bus addresses. With a file it is
// the memory at m.Offset; without one the device asks for it by messages,
// which the client's DMAHandler answers. ArgSize may be 0.
func (c *Client) DMAMap(ctx context.Context, m DMAMap, f *os.File) error {
	m.ArgSize = dmaMapSize
	var fds []int
	if f != nil {
		fd, err := fdOf(f)
		if err != nil {
			return fmt.Errorf("vfiouser: dma map: %w", err)
		}
		fds = []int{fd}
	}
	_, got, err := c.roundTrip(ctx, CmdDMAMap, m.Append(nil), fds)
	c.main.sock.trash.Close(got)
	return err
}

// DMAUnmap unmaps the range. When it returns without an error the device no
// longer accesses it.
func (c *Client) DMAUnmap(ctx context.Context, addr, size uint64) error {
	_, err := c.ask(ctx, CmdDMAUnmap, DMAUnmap{ArgSize: dmaUnmapSize, Addr: addr, Size: size}.Append(nil))
	return err
}

// SetIRQs sends a DEVICE_SET_IRQS unchanged; ArgSize may be 0. See ArmIRQs.
func (c *Client) SetIRQs(ctx context.Context, s IRQSet, fds ...int) error {
	s.ArgSize = uint32(irqSetSize + len(s.Bools))
	_, got, err := c.roundTrip(ctx, CmdSetIRQs, s.Append(nil), fds)
	c.main.sock.trash.Close(got)
	return err
}

// ArmIRQs gives the device an event descriptor for each vector from start on,
// with the largest number in one message that the server takes.
func (c *Client) ArmIRQs(ctx context.Context, index, start uint32, events []*os.File) error {
	fds := make([]int, len(events))
	for i, f := range events {
		fd, err := fdOf(f)
		if err != nil {
			return fmt.Errorf("vfiouser: arm interrupts: %w", err)
		}
		fds[i] = fd
	}
	end := start + uint32(len(fds))
	for at := start; len(fds) > 0; {
		n := min(len(fds), c.caps.maxFDs())
		s := IRQSet{Flags: IRQDataEventFD | IRQActionTrigger, Index: index, Start: at, Count: uint32(n)}
		if err := c.SetIRQs(ctx, s, fds[:n]...); err != nil {
			return err
		}
		at, fds = at+uint32(n), fds[n:]
	}
	if index != IRQMSIX || c.cfg.NoUnmask {
		return nil
	}
	// QEMU's server counts from 0, whatever start is.
	err := c.SetIRQs(ctx, IRQSet{Flags: IRQDataNone | IRQActionUnmask, Index: index, Count: end})
	if remote := new(RemoteError); errors.As(err, &remote) {
		return nil // a server without the quirk may refuse it
	}
	return err
}

// DisableIRQs removes all descriptors of the interrupt index.
func (c *Client) DisableIRQs(ctx context.Context, index uint32) error {
	return c.SetIRQs(ctx, IRQSet{Flags: IRQDataNone | IRQActionTrigger, Index: index})
}

// UnmaskINTx tells the device that the legacy interrupt has been handled; it
// fires again while it is asserted.
func (c *Client) UnmaskINTx(ctx context.Context) error {
	return c.SetIRQs(ctx, IRQSet{Flags: IRQDataNone | IRQActionUnmask, Index: IRQINTx, Count: 1})
}

// ask is roundTrip without descriptors.
func (c *Client) ask(ctx context.Context, cmd Command, payload []byte) ([]byte, error) {
	body, fds, err := c.roundTrip(ctx, cmd, payload, nil)
	c.main.sock.trash.Close(fds)
	return body, err
}
