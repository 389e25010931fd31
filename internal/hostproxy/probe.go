package hostproxy

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// remote is the result of a probe: enough to describe the device to a VMM without
// further requests.
type remote struct {
	config      []byte // configuration space after a reset
	bars        [pcie.MaxBARs]pcie.BAR
	payload     int  // bytes of a write or completion for the device, whatever Device Control says
	express     int  // offset of the PCI Express capability; 0: none
	flr         bool // Function Level Reset is supported
	power       int  // offset of the Power Management capability, if leaving D3hot resets the function; 0: no
	msiVectors  int  // Multiple Message Capable; 0: no MSI
	msixVectors int
}

// startsFLR reports whether a configuration write starts a function level reset.
func (r *remote) startsFLR(p *tlp.Packet) bool {
	v, ok := r.deviceControl(p)
	return ok && r.flr && p.FirstBE&2 != 0 && v&cfgspace.DevCtlFLR != 0
}

// Fields of the Power Management Control/Status register (PCI Express Base
// Specification, section 7.5.2.2).
const (
	powerState  = 3
	d3hot       = 3
	noSoftReset = 1 << 3
	d1Support   = 1 << 9 // of Power Management Capabilities; D2_Support follows
)

// powerTo returns the power state that a configuration write requests. It knows
// only functions that are reset when they leave D3hot. A function discards a write of
// D1 or D2 if it does not support that state.
func (r *remote) powerTo(p *tlp.Packet) (state uint8, ok bool) {
	if r.power == 0 || int(p.Register) != r.power+cfgspace.OffPMStatus || p.FirstBE&1 == 0 || len(p.Data) == 0 {
		return 0, false
	}
	state = p.Data[0] & powerState
	if state == 0 || state == d3hot {
		return state, true
	}
	caps := binary.LittleEndian.Uint16(r.config[r.power+cfgspace.OffPMCaps:])
	return state, caps&(d1Support<<(state-1)) != 0
}

// deviceControl returns the value that a write to Device Control carries.
func (r *remote) deviceControl(p *tlp.Packet) (uint16, bool) {
	if r.express == 0 || int(p.Register) != r.express+cfgspace.OffDevCtl || len(p.Data) < 2 {
		return 0, false
	}
	return binary.LittleEndian.Uint16(p.Data), true
}

// probeTimeout bounds a whole probe: about a thousand requests.
const probeTimeout = 5 * time.Second

// probe reads the configuration space of the device in a slot and sizes its
// BARs, as firmware does after a hot-plug.
func (s *slot) probe(ctx context.Context) (*remote, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	r := &remote{config: make([]byte, pcie.ConfigSize)}
	if err := s.configAccess(ctx, tlp.CfgRd0, r.config[:pcie.DW], 0); err != nil {
		return nil, fmt.Errorf("read the vendor ID: %w", err)
	}
	if binary.LittleEndian.Uint16(r.config) == 0xffff {
		return nil, errors.New("the device does not answer configuration reads")
	}
	if err := s.configAccess(ctx, tlp.CfgRd0, r.config, 0); err != nil {
		return nil, fmt.Errorf("read the configuration space: %w", err)
	}
	if layout := r.config[cfgspace.OffHeaderType] & 0x7f; layout != 0 {
		return nil, fmt.Errorf("header type %d: only endpoints (type 0) can be attached", layout)
	}
	if err := s.sizeBARs(ctx, r); err != nil {
		return nil, err
	}
	r.payload = pcie.MaxPayload // without the capability: the box makes the device's TLPs
	if err := r.usable(); err != nil {
		return nil, err
	}
	if r.express = cfgspace.Find(r.config, cfgspace.CapExpress); r.express != 0 {
		devCap := binary.LittleEndian.Uint32(r.config[r.express+cfgspace.OffDevCap:])
		r.flr = devCap&cfgspace.DevCapFLR != 0
		if n, ok := pcie.DecodePayloadSize(uint8(devCap & 7)); ok {
			r.payload = int(n)
		}
	}
	if at := cfgspace.Find(r.config, cfgspace.CapPM); at != 0 && r.config[at+cfgspace.OffPMStatus]&noSoftReset == 0 {
		r.power = at
	}
	r.msiVectors = msiVectors(r.config)
	if m, ok := cfgspace.FindMSIX(r.config); ok {
		r.msixVectors = m.Vectors
	}
	return r, nil
}

// msiVectors returns the number of MSI vectors, 0 without the capability.
func msiVectors(config []byte) int {
	at := cfgspace.Find(config, cfgspace.CapMSI)
	if at == 0 {
		return 0
	}
	const multipleMessage = 7 // a power of two up to 32 (section 7.7.1.2)
	return min(1<<(config[at+2]>>1&multipleMessage), 32)
}

// usable returns an error for a device whose registers are behind I/O BARs only: the
// host does not carry I/O requests. Other devices work without their I/O BARs, as
// PCI Express demands (section 7.5.1.2.1).
func (r *remote) usable() error {
	io := -1
	for i, bar := range r.bars {
		switch {
		case bar.Size > 0 && !bar.IO:
			return nil
		case bar.Size > 0:
			io = i
		}
	}
	if io >= 0 {
		return fmt.Errorf("the device has I/O BARs only (BAR %d of %d bytes), which need I/O requests: only memory BARs can be attached", io, r.bars[io].Size)
	}
	return nil
}

// sizeBARs writes all ones to each BAR, reads back the bits that stick, and
// restores the former value (section 7.5.1.2.1).
func (s *slot) sizeBARs(ctx context.Context, r *remote) error {
	const first, n = cfgspace.OffBAR0, pcie.MaxBARs * pcie.DW
	ones, sized := bytes.Repeat([]byte{0xff}, n), make([]byte, n)
	if err := errors.Join(s.configAccess(ctx, tlp.CfgWr0, ones, first), s.configAccess(ctx, tlp.CfgRd0, sized, first),
		s.configAccess(ctx, tlp.CfgWr0, r.config[first:first+n], first)); err != nil {
		return fmt.Errorf("size the BARs: %w", err)
	}
	// The bits that did not stick give the size, the low bits the kind.
	probed := append([]byte(nil), r.config...)
	copy(probed[first:], sized)
	for i, bar := range cfgspace.DecodeBARs(probed) {
		if bar.Kind == cfgspace.NoBAR {
			continue
		}
		lo := binary.LittleEndian.Uint32(sized[i*pcie.DW:])
		var hi uint32
		if bar.Kind == cfgspace.Memory64 {
			hi = binary.LittleEndian.Uint32(sized[(i+1)*pcie.DW:])
		}
		r.bars[i] = pcie.BAR{
			Size: cfgspace.SizeBAR(bar.Kind, lo, hi), Wide: bar.Kind == cfgspace.Memory64,
			IO: bar.Kind == cfgspace.IO, Prefetchable: bar.Prefetchable,
		}
	}
	return nil
}

// configAccess reads or writes the double words of configuration space at off. It
// sends the requests, one outstanding for each tag, and waits for all. It repeats the request of a double word while the device
// answers Request Retry Status (section 2.3.2).
func (s *slot) configAccess(ctx context.Context, typ tlp.Type, data []byte, off int) error {
	for {
		st, err := s.configOnce(ctx, typ, data, off)
		switch {
		case err != nil:
			return err
		case st == pcie.SuccessfulCompletion:
			return nil
		case st != pcie.RequestRetry:
			return fmt.Errorf("%v of %d bytes at %#x: no answer, or %v", typ, len(data), off, st)
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *slot) configOnce(ctx context.Context, typ tlp.Type, data []byte, off int) (pcie.CplStatus, error) {
	ended := make(chan pcie.CplStatus, 1)
	g := s.host.group
	e := g.Enter()
	id := s.root.begin(e, op{done: func(_ engine.Entry, ok bool, st pcie.CplStatus) {
		if !ok && st == pcie.SuccessfulCompletion {
			st = pcie.UnsupportedRequest
		}
		ended <- st
	}})
	for at := 0; at < len(data); {
		err := s.configDW(e, id, typ, data[at:at+pcie.DW], off+at)
		if err == nil {
			at += pcie.DW
			continue
		}
		room := s.waitRoom(e)
		g.Leave(e)
		select {
		case <-room:
		case <-ctx.Done():
			e = g.Enter()
			s.root.release(e, id)
			g.Leave(e)
			return 0, ctx.Err()
		}
		e = g.Enter()
	}
	s.root.release(e, id)
	g.Leave(e)
	select {
	case st := <-ended:
		return st, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (s *slot) configDW(e engine.Entry, id int, typ tlp.Type, data []byte, off int) error {
	p := s.root.config(typ, uint16(off), pcie.DW)
	if typ == tlp.CfgRd0 {
		return s.root.request(e, id, p, data)
	}
	p.Data = data
	return s.root.request(e, id, p, nil)
}
