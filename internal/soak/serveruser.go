package soak

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
)

// errServerDMA is the failure of a copy that the device server reported.
var errServerDMA = errors.New("the device server could not access host memory")

// serverUser drives a device server.
type serverUser struct {
	*session
	regs   registers
	count  uint64 // interrupts
	copies uint32
}

func openServer(s *session) (*serverUser, error) {
	region, err := s.bus.BAR(0)
	if err != nil {
		return nil, err
	}
	u := &serverUser{session: s}
	u.regs = newRegisters(s, region, serverScratch, &s.cluster.servers[s.slot].numbers, u.alive)
	return u, errors.Join(u.alive(), s.bus.EnableMSIX(1))
}

func (u *serverUser) alive() error {
	if u.regs.region.Read32(serverID) != serverMagic {
		return driver.ErrDeviceLost
	}
	return nil
}

func (u *serverUser) lanes() []func(r *rand.Rand, over func() bool) {
	return []func(*rand.Rand, func() bool){u.copyLane, u.accessLane}
}

func (u *serverUser) interrupts() uint64 { return u.count }

// close stops the DMA of a device whose use was cut short.
func (u *serverUser) close() error {
	if u.ended.Load() {
		_ = u.bus.Reset() // a lost device does none
	}
	return nil
}

// accessLane writes and reads registers until over returns true.
func (u *serverUser) accessLane(r *rand.Rand, over func() bool) {
	for !over() && u.regs.use(r) {
		continue
	}
}

// copyLane lets the device copy from host memory to host memory until over returns true.
func (u *serverUser) copyLane(r *rand.Rand, over func() bool) {
	var buf driver.DMA
	ok := u.operation("prepare", 0, func(context.Context) (err error) {
		buf, err = u.bus.AllocDMA(2 * serverBuffer)
		return err
	})
	for ok && !over() {
		n := 1 + r.IntN(serverBuffer/2)
		from, to := r.IntN(serverBuffer-n), serverBuffer+r.IntN(serverBuffer-n)
		seed := r.Uint64()
		ok = u.operation("copy by a device server", 2*n, func(ctx context.Context) error {
			fill(buf.Bytes()[from:from+n], seed)
			clear(buf.Bytes()[to : to+n])
			if err := u.copy(ctx, buf, from, to, n); err != nil {
				return err
			}
			if i := differs(buf.Bytes()[to:to+n], seed); i >= 0 {
				return wrong("copy %d of the session: byte %d of %d is wrong (from %#x to %#x): %#x", u.copies, i, n, from, to, buf.Bytes()[to+i])
			}
			return nil
		})
		if ok {
			u.ledger.add(func(a *Account) { a.ServerBytes += 2 * uint64(n) })
		}
	}
}

// interruptPatience is the time after which the driver looks at the counter of copies
// without an interrupt.
const interruptPatience = 2 * time.Second

// copy lets the device copy n bytes, and waits for its interrupt.
func (u *serverUser) copy(ctx context.Context, buf driver.DMA, from, to, n int) error {
	base, regs := buf.Segments()[0].Addr, u.regs.region
	regs.Write64(serverFrom, base+uint64(from))
	regs.Write64(serverTo, base+uint64(to))
	regs.Write32(serverLength, uint32(n))
	regs.Write32(serverDo, 1)
	u.copies++
	for overdue := false; ; {
		fired, err := u.bus.WaitInterrupt(ctx, 0, interruptPatience)
		if err != nil {
			return err
		}
		u.count += fired
		done := regs.Read32(serverDone)
		switch {
		case done == u.copies && fired > 0:
			if failed := regs.Read32(serverFailed); failed != 0 {
				return errors.Join(errServerDMA, u.alive())
			}
			return nil
		case done == 0xffff_ffff:
			return errors.Join(errAllOnes, u.alive())
		case done != u.copies-1 && done != u.copies:
			return wrong("the device reports %d copies after %d", done, u.copies)
		case done == u.copies && overdue:
			return wrong("the interrupt of copy %d of the session is missing, which ended", u.copies)
		}
		overdue = done == u.copies // the interrupt may be under way
	}
}
