package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// interrupts waits for fences one by one and compares the device's count of
// interrupts with the number of fences.
func (t *tester) interrupts(ctx context.Context, c *Check) error {
	if t.dev.info.Vectors == 0 {
		c.Detail = "polling: none wanted"
		return nil
	}
	n := 100
	if t.opts.Quick {
		n = 20
	}
	sentBefore := t.dev.regs.Read64(reg.CountInterrupts)
	arrivedBefore, missedBefore := t.dev.Interrupts()
	for range n {
		if err := t.stream.Sync(ctx); err != nil {
			return err
		}
	}
	// A fence that is there before Wait looks needs no interrupt. If that was so of all,
	// theirs still wait.
	if arrived, _ := t.dev.Interrupts(); arrived == arrivedBefore {
		if err := t.stream.collectInterrupts(ctx); err != nil {
			return err
		}
	}
	arrived, missed := t.dev.Interrupts()
	sent := t.dev.regs.Read64(reg.CountInterrupts) - sentBefore
	c.Detail = fmt.Sprintf("%d fences: %d sent, %d woke, %d missed", n, sent, arrived-arrivedBefore, missed-missedBefore)
	switch {
	case sent != uint64(n):
		return fmt.Errorf("device sent %d interrupts for %d fences", sent, n)
	case missed != missedBefore:
		return fmt.Errorf("%d interrupts did not arrive", missed-missedBefore)
	case arrived == arrivedBefore:
		return errors.New("no interrupt arrived")
	}
	return nil
}

// ordering checks that what the device wrote to host memory is there when a
// register read that follows it returns (PCI Express ordering, table 2-40: a
// completion does not pass a posted write). The register is the one that tells
// which fence was written.
func (t *tester) ordering(ctx context.Context, c *Check) error {
	m, err := t.dev.AllocDMA(pageSize)
	if err != nil {
		return err
	}
	defer m.Free() //nolint:errcheck // the bus frees at its Close what could not be freed here
	addr := m.Segments()[0].Addr
	for i := uint64(1); i <= uint64(t.opts.Rounds); i++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		// Values that no fence of the stream has had, in its QFence register.
		value := 1<<48 + i
		if err := t.stream.Submit(ctx, reg.Fence(0, addr, value)); err != nil {
			return err
		}
		if err := t.untilFence(ctx, value); err != nil {
			return err
		}
		if m.Load64(0) != value {
			t.stale++
		}
	}
	c.Detail = fmt.Sprintf("%d stale of %d", t.stale, t.opts.Rounds)
	if t.stale > 0 {
		return fmt.Errorf("memory was stale behind %d of %d register reads", t.stale, t.opts.Rounds)
	}
	return nil
}

// untilFence reads the queue's fence register until it has the value. It does
// not sleep: the look at the memory has to follow the read at once.
func (t *tester) untilFence(ctx context.Context, value uint64) error {
	at := queueReg(t.stream.queue, reg.QFence)
	for n := 1; t.dev.regs.Read64(at) != value; n++ {
		if n%spins == 0 {
			if err := errors.Join(ctx.Err(), t.dev.Alive()); err != nil {
				return err
			}
			if state := reg.QueueState(t.dev.regs.Read32(queueReg(t.stream.queue, reg.QState))); state == reg.QueueHalted {
				return t.stream.Sync(ctx)
			}
		}
	}
	return nil
}

// refusedCommand sends what the device must refuse, and recovers.
func (t *tester) refusedCommand(ctx context.Context, _ *Check) error {
	return t.mustFail(ctx, reg.CopyVRAM(0, uint64(t.scratch), t.dev.info.VRAMSize-1, 16), reg.ErrRange)
}

// refusedDMA reads host memory that does not exist.
func (t *tester) refusedDMA(ctx context.Context, c *Check) error {
	const nowhere = 0x000f_dead_0000_0000
	before := t.dev.regs.Read32(reg.ErrorCount)
	if err := t.mustFail(ctx, reg.CopyToVRAM(0, uint64(t.scratch), nowhere, 64), reg.ErrDMARefused); err != nil {
		return err
	}
	c.Detail = fmt.Sprintf("%d errors counted", t.dev.regs.Read32(reg.ErrorCount)-before)
	return nil
}

func (t *tester) mustFail(ctx context.Context, command reg.Command, code reg.Error) error {
	if err := t.stream.Submit(ctx, command); err != nil {
		return err
	}
	err := t.stream.Sync(ctx)
	var q *QueueError
	switch {
	case err == nil:
		return errors.New("was done")
	case !errors.As(err, &q):
		return err
	case q.Code != code:
		return fmt.Errorf("refused with code %d (%v), want %d (%v)", q.Code, q.Code, code, code)
	}
	if err := t.stream.Reset(); err != nil {
		return err
	}
	return t.stream.Sync(ctx)
}
