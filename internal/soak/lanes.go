package soak

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// wrongError is an error that no fault of the network excuses.
type wrongError struct{ error }

func wrong(format string, args ...any) error { return wrongError{fmt.Errorf(format, args...)} }

// errReset is the end of an operation whose device was reset before its writes were counted.
var errReset = errors.New("the device was reset")

// errAllOnes is the result of a read without an answer.
var errAllOnes = errors.New("all ones")

// registers is a page of registers: the first of eight scratch registers checks the
// order of the writes to it.
type registers struct {
	session *session
	region  driver.Region
	scratch uint64
	numbers *numbers
	resets  uint64 // of numbers, when the session began
	alive   func() error
	writes  uint64 // numbered ones so far
}

// newRegisters returns the registers of a device that has just been opened.
func newRegisters(s *session, region driver.Region, scratch uint64, n *numbers, alive func() error) registers {
	_, _, resets := n.counts()
	return registers{session: s, region: region, scratch: scratch, numbers: n, resets: resets, alive: alive}
}

// use writes and reads registers.
func (p *registers) use(r *rand.Rand) bool {
	n := 1 + r.IntN(256)
	if r.IntN(3) < 2 {
		return p.session.operation("posted writes", 4*n+4, func(context.Context) error { return p.posted(n) })
	}
	n = 1 + n/16
	seed := r.Uint64()
	return p.session.operation("register accesses", 8*n, func(context.Context) error { return p.others(n, seed) })
}

// posted writes the next n numbers to the register that checks their order, and
// reads it: the read does not pass the writes.
func (p *registers) posted(n int) error {
	for range n {
		p.region.Write32(p.scratch, uint32(p.writes))
		p.writes++
	}
	if err := p.expect(p.region.Read32(p.scratch), uint32(p.writes-1)); err != nil {
		return err
	}
	switch seen, bad, resets := p.numbers.counts(); {
	case resets != p.resets:
		return errReset // between the read and now, since it has returned the last number
	case seen != p.writes || bad != 0:
		return wrong("of %d posted writes %d arrived, %d of them out of order", p.writes, seen, bad)
	}
	p.session.ledger.add(func(a *Account) { a.PostedWrites += uint64(n) })
	return nil
}

// others writes the other scratch registers and reads them back.
func (p *registers) others(n int, seed uint64) error {
	for i := range uint64(n) {
		off, v := p.scratch+4*(1+i%(reg.ScratchCount-1)), uint32(seed*(i+1))>>1 // never all ones
		p.region.Write32(off, v)
		if err := p.expect(p.region.Read32(off), v); err != nil {
			return err
		}
	}
	return nil
}

// expect compares the value of a register read. All ones mean that the device is
// gone, or that this read was not answered in time.
func (p *registers) expect(got, want uint32) error {
	switch {
	case got == want:
		return nil
	case got != 0xffff_ffff:
		return wrong("a register reads %#x, want %#x", got, want)
	}
	return errors.Join(errAllOnes, p.alive())
}

// operation calls do, which moves n bytes, and adds the result to the account. It
// returns false at the end of the session.
func (s *session) operation(what string, n int, do func(ctx context.Context) error) bool {
	began := time.Now()
	s.ledger.add(func(a *Account) {
		a.Operations++
		a.Asked += uint64(n)
	})
	ctx, cancel := context.WithTimeout(context.Background(), operationLimit)
	defer cancel()
	err := do(ctx)
	s.ledger.add(func(a *Account) {
		if err == nil {
			a.Done += uint64(n)
			return
		}
		a.Lost += uint64(n)
		a.LostOperations++
	})
	if err == nil {
		if n > 0 {
			s.alive.Store(&began)
		}
		return true
	}
	s.ended.Store(true)
	var w wrongError
	var gone peerGoneError
	switch {
	case errors.As(err, &gone):
	case errors.As(err, &w):
		s.ledger.violate("slot %d: %s: %v", s.slot, what, err)
	case errors.Is(err, errReset) && !s.over():
		s.ledger.violate("slot %d: %s: %v, and is attached", s.slot, what, err)
	case ctx.Err() != nil:
		s.ledger.violate("slot %d: %s: neither finished nor lost after %v", s.slot, what, operationLimit)
	default:
		s.ledger.lose(began, "slot %d: %s of %d bytes: %v: %s", s.slot, what, n, err, s.ends(s.want))
	}
	return false
}

// over waits for the end of the binding. A box resets a device for no other reason.
func (s *session) over() bool {
	return s.cluster.until(operationLimit, func() bool {
		h, x := s.cluster.observed(s.slot, s.want)
		return h.GetState() != attached || x.GetState() != attached
	})
}

// fill fills p with a byte sequence that is unique to the seed.
func fill(p []byte, seed uint64) {
	r := rand.NewPCG(seed, 0x50a4)
	for len(p) >= 8 {
		binary.LittleEndian.PutUint64(p, r.Uint64())
		p = p[8:]
	}
	for i := range p {
		p[i] = byte(r.Uint64())
	}
}

// differs returns the index of the first byte that differs from those of fill; -1:
// none.
func differs(p []byte, seed uint64) int {
	want := make([]byte, len(p))
	fill(want, seed)
	for i := range p {
		if p[i] != want[i] {
			return i
		}
	}
	return -1
}
