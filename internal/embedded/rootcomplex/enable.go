package rootcomplex

import (
	"fmt"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/pcie"
)

// setCommand changes bits of the Command register. The upper half of the
// double word is Status, whose error bits clear when written as 1: it is
// written as 0.
func (e *enumerator) setCommand(f *Function, set, clear uint16) error {
	v, err := e.acc.ConfigRead32(f.ID, cfgspace.OffCommand)
	if err != nil {
		return err
	}
	if v == allOnes {
		return fmt.Errorf("%v: %w", f.ID, ErrGone)
	}
	return e.acc.ConfigWrite32(f.ID, cfgspace.OffCommand, uint32(uint16(v)&^clear|set))
}

// pathMPS returns the largest payload that the path to the bridge and every function
// below it support. In a rescan the path is already programmed and in use, and pathMPS
// refuses a device with a smaller maximum.
func (e *enumerator) pathMPS(bridge *Function) (pcie.PayloadSize, error) {
	mps := bridge.MPS
	if e.fixed {
		mps = bridge.payload
	}
	var err error
	bridge.Walk(func(f *Function) bool {
		if f.PCIe == 0 || f.MPS >= mps {
			return true
		}
		if e.fixed {
			err = fmt.Errorf("%v takes payloads of %d bytes, its path is set to %d: %w", f.ID, f.MPS, mps, ErrMalformed)
			return false
		}
		mps = f.MPS
		return true
	})
	return mps, err
}

// enableBelow programs bridge windows, payload sizes and the Command register of every
// function behind the bridge, parents before children.
func (e *enumerator) enableBelow(bridge *Function, mps pcie.PayloadSize) error {
	for _, f := range bridge.Children {
		if f.Bridge {
			if err := e.writeWindows(f); err != nil {
				return err
			}
		}
		if err := e.setDeviceControl(f, mps); err != nil {
			return err
		}
		if err := e.setCommand(f, cfgspace.CmdMemory|cfgspace.CmdBusMaster, 0); err != nil {
			return err
		}
		if err := e.enableBelow(f, mps); err != nil {
			return err
		}
	}
	return nil
}

// writeWindows programs Memory Base/Limit and Prefetchable Base/Limit of a
// bridge (section 7.5.1.3.8 ff.); an empty window has a base above its limit.
func (e *enumerator) writeWindows(f *Function) error {
	mem := uint32(0x0000_fff0)
	if w := f.Window32; w.Size > 0 {
		mem = uint32(w.Base>>16)&0xfff0 | uint32(w.End()-1)&0xfff0_0000
	}
	pref, baseUpper, limitUpper := uint32(0x0000_fff0), uint32(allOnes), uint32(0)
	if w := f.Window64; w.Size > 0 {
		last := w.End() - 1
		pref = uint32(w.Base>>16)&0xfff0 | uint32(last)&0xfff0_0000
		baseUpper, limitUpper = uint32(w.Base>>32), uint32(last>>32)
	}
	for _, w := range []struct {
		off uint16
		v   uint32
	}{
		{cfgspace.OffMemBase, mem},
		// Close the window while its two halves disagree.
		{cfgspace.OffPrefLimitUpper, 0},
		{cfgspace.OffPrefBaseUpper, baseUpper},
		{cfgspace.OffPrefBase, pref},
		{cfgspace.OffPrefLimitUpper, limitUpper},
	} {
		if err := e.acc.ConfigWrite32(f.ID, w.off, w.v); err != nil {
			return err
		}
	}
	return nil
}

// setDeviceControl sets payload sizes and tags (section 7.5.3.4). The upper
// half of the double word is Device Status, cleared by ones: it is written as 0.
func (e *enumerator) setDeviceControl(f *Function, mps pcie.PayloadSize) error {
	if f.PCIe == 0 {
		return nil
	}
	devCap, err := e.acc.ConfigRead32(f.ID, f.PCIe+cfgspace.OffDevCap)
	if err != nil {
		return err
	}
	v, err := e.acc.ConfigRead32(f.ID, f.PCIe+cfgspace.OffDevCtl)
	if err != nil {
		return err
	}
	ctl := uint16(v) &^ (cfgspace.DevCtlMPS | cfgspace.DevCtlExtTag)
	f.payload = mps
	ctl |= uint16(mps.Encode()) << 5
	if e.spec.MaxReadRequest != 0 {
		ctl = ctl&^cfgspace.DevCtlMRRS | uint16(e.spec.MaxReadRequest.Encode())<<12
	}
	if e.spec.ExtendedTags && devCap&cfgspace.DevCapExtTag != 0 {
		ctl |= cfgspace.DevCtlExtTag
	}
	if err := e.acc.ConfigWrite32(f.ID, f.PCIe+cfgspace.OffDevCtl, uint32(ctl)); err != nil {
		return err
	}
	return e.enableTenBitTags(f)
}

// enableTenBitTags sets 10-Bit Tag Requester Enable if the function supports it.
func (e *enumerator) enableTenBitTags(f *Function) error {
	if !e.spec.TenBitTags {
		return nil
	}
	cap2, err := e.acc.ConfigRead32(f.ID, f.PCIe+cfgspace.OffDevCap2)
	if err != nil || cap2&cfgspace.DevCap2TagRequester == 0 {
		return err
	}
	v, err := e.acc.ConfigRead32(f.ID, f.PCIe+cfgspace.OffDevCtl2)
	if err != nil {
		return err
	}
	return e.acc.ConfigWrite32(f.ID, f.PCIe+cfgspace.OffDevCtl2, uint32(uint16(v))|cfgspace.DevCtl2TenBitTag)
}
