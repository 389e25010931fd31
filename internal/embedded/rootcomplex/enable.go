package rootcomplex

import (
	"fmt"

	"github.com/dxpu-project/dxpu/cfgspace"
)

// setCommand changes bits of the Command register. The upper half of the
// double word is Status, whose error bits clear when written as 1: it is
// written as 0.
func (e *enumerator) setCommand(f *Function, set, clear uint16) {
	v := e.read(f, cfgspace.OffCommand)
	if v == allOnes {
		e.fail(fmt.Errorf("%v: %w", f.ID, ErrGone))
	}
	e.write(f, cfgspace.OffCommand, uint32(uint16(v)&^clear|set))
}

// setPathMPS computes the largest payload that the path to the bridge and every
// function below it support. In a rescan the path is already programmed and in use, and
// setPathMPS refuses a device with a smaller maximum.
func (e *enumerator) setPathMPS(bridge *Function) {
	e.mps = bridge.MPS
	if e.fixed {
		e.mps = bridge.payload
	}
	bridge.Walk(func(f *Function) bool {
		if f.PCIe == 0 || f.MPS >= e.mps {
			return true
		}
		if e.fixed {
			e.fail(fmt.Errorf("%v takes payloads of %d bytes, its path is set to %d: %w", f.ID, f.MPS, e.mps, ErrMalformed))
			return false
		}
		e.mps = f.MPS
		return true
	})
	if e.err == nil {
		bridge.payload = e.mps
	}
}

// enableBelow programs bridge windows, payload sizes and the Command register of every
// function behind the bridge, parents before children.
func (e *enumerator) enableBelow(bridge *Function) {
	for _, f := range bridge.Children {
		if f.Bridge {
			e.writeWindows(f)
		}
		e.setDeviceControl(f)
		e.setCommand(f, cfgspace.CmdMemory|cfgspace.CmdBusMaster, 0)
		e.enableBelow(f)
	}
}

// writeWindows programs Memory Base/Limit and Prefetchable Base/Limit of a
// bridge (section 7.5.1.3.8 ff.); an empty window has a base above its limit.
func (e *enumerator) writeWindows(f *Function) {
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
	e.write(f, cfgspace.OffMemBase, mem)
	e.write(f, cfgspace.OffPrefLimitUpper, 0) // close the window while its two halves disagree
	e.write(f, cfgspace.OffPrefBaseUpper, baseUpper)
	e.write(f, cfgspace.OffPrefBase, pref)
	e.write(f, cfgspace.OffPrefLimitUpper, limitUpper)
}

// setDeviceControl sets payload sizes and tags (section 7.5.3.4), 10-bit tags where the
// function supports them. The upper half of the double word is Device Status, cleared by
// ones: it is written as 0.
func (e *enumerator) setDeviceControl(f *Function) {
	if f.PCIe == 0 {
		return
	}
	devCap := e.read(f, f.PCIe+cfgspace.OffDevCap)
	ctl := uint16(e.read(f, f.PCIe+cfgspace.OffDevCtl)) &^ (cfgspace.DevCtlMPS | cfgspace.DevCtlExtTag)
	f.payload = e.mps
	ctl |= uint16(e.mps.Encode()) << 5
	if e.spec.MaxReadRequest != 0 {
		ctl = ctl&^cfgspace.DevCtlMRRS | uint16(e.spec.MaxReadRequest.Encode())<<12
	}
	if e.spec.ExtendedTags && devCap&cfgspace.DevCapExtTag != 0 {
		ctl |= cfgspace.DevCtlExtTag
	}
	e.write(f, f.PCIe+cfgspace.OffDevCtl, uint32(ctl))
	if e.spec.TenBitTags && e.read(f, f.PCIe+cfgspace.OffDevCap2)&cfgspace.DevCap2TagRequester != 0 {
		ctl2 := e.read(f, f.PCIe+cfgspace.OffDevCtl2)
		e.write(f, f.PCIe+cfgspace.OffDevCtl2, uint32(uint16(ctl2))|cfgspace.DevCtl2TenBitTag)
	}
}
