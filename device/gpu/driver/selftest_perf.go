package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/quantile"
)

func (t *tester) measurements() []item {
	return []item{
		{"latency: register read", func(_ context.Context, c *Check) error {
			return t.latency(c, func() error { t.dev.regs.Read32(reg.ID); return nil })
		}},
		{"latency: register write", func(_ context.Context, c *Check) error {
			err := t.latency(c, func() error { t.dev.regs.Write32(reg.Scratch, 1); return nil })
			return errors.Join(err, t.dev.Flush())
		}},
		{"latency: command and fence", func(ctx context.Context, c *Check) error {
			return t.latency(c, func() error { return t.stream.Sync(ctx) })
		}},
		{"latency: 4 KiB to device", func(ctx context.Context, c *Check) error {
			return t.latency(c, func() error { return t.stream.Upload(ctx, t.scratch, make([]byte, 4096)) })
		}},
		{"latency: 4 KiB to host", func(ctx context.Context, c *Check) error {
			return t.latency(c, func() error { return t.stream.Download(ctx, make([]byte, 4096), t.scratch) })
		}},
		{"bandwidth: host to device", t.bandwidth(t.dev.info.ReadSize, func(ctx context.Context, m DMA, n int) error {
			return t.stream.CopyToDevice(ctx, t.scratch, m, 0, n)
		})},
		{"bandwidth: device to host", t.bandwidth(t.dev.info.WriteSize, func(ctx context.Context, m DMA, n int) error {
			return t.stream.CopyToHost(ctx, m, 0, t.scratch, n)
		})},
		{"bandwidth: aperture writes", t.apertureBandwidth},
	}
}

// latency measures the median of an operation.
func (t *tester) latency(c *Check, op func() error) error {
	n := 500
	if t.opts.Quick {
		n = 100
	}
	times := make([]time.Duration, n)
	for i := range times {
		at := t.dev.bus.Now()
		if err := op(); err != nil {
			return err
		}
		times[i] = t.dev.bus.Now() - at
	}
	c.Value, c.Unit = float64(quantile.Of(times, 0.5).Nanoseconds())/1e3, "us"
	c.Detail = fmt.Sprintf("median of %d, p99 %v", n, quantile.Of(times, 0.99).Round(100*time.Nanosecond))
	return nil
}

// copiesInARow is the number of copies of one measurement: enough that neither the
// first doorbell nor the wait for the last fence counts.
const copiesInARow = 8

// bandwidth measures copies of the whole scratch memory in a row, after one that
// touches the memory of both sides and opens the window of the link. packet is the
// largest payload of the device's TLPs in bytes.
func (t *tester) bandwidth(packet int, start func(ctx context.Context, m DMA, n int) error) func(ctx context.Context, c *Check) error {
	return func(ctx context.Context, c *Check) error {
		n := min(t.size, 16<<20)
		if t.opts.Quick {
			n = min(n, 4<<20)
		}
		m, err := t.dev.AllocDMA(n)
		if err != nil {
			return err
		}
		defer m.Free() //nolint:errcheck // the bus frees at its Close what could not be freed here
		copies := func(count int) error {
			for range count {
				if err := start(ctx, m, n); err != nil {
					return err
				}
			}
			return t.stream.Sync(ctx)
		}
		err = copies(1)
		at := t.dev.bus.Now()
		if err == nil {
			err = copies(copiesInARow)
		}
		if err != nil {
			return errors.Join(err, t.stream.Reset()) // the device must not use m any more
		}
		c.rate(copiesInARow*n, t.dev.bus.Now()-at)
		c.Detail += fmt.Sprintf(", %d in a TLP", packet)
		return nil
	}
}

func (t *tester) apertureBandwidth(_ context.Context, c *Check) error {
	n := min(t.size, 1<<20)
	if t.opts.Quick {
		n = min(n, 64<<10)
	}
	data := t.data(n)
	at := t.dev.bus.Now()
	if err := t.dev.WriteAperture(t.scratch, data); err != nil {
		return err
	}
	if err := t.dev.Flush(); err != nil {
		return err
	}
	c.rate(n, t.dev.bus.Now()-at)
	return nil
}

func (c *Check) rate(n int, d time.Duration) {
	c.Value, c.Unit = float64(n)/d.Seconds()/1e6, "MB/s"
	c.Detail = fmt.Sprintf("%d bytes", n)
}
