package bench

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
)

// copier copies between one buffer of host memory and one of the device.
type copier struct {
	ctx    context.Context
	dev    *driver.Device
	stream *driver.Stream
	host   driver.DMA
	ptr    driver.Ptr
	want   []byte
	seed   uint64
	size   int
}

func newCopier(ctx context.Context, dev *driver.Device, size int) (*copier, error) {
	// The serial number makes the data of each device its own: bytes of another
	// binding are wrong ones.
	c := &copier{ctx: ctx, dev: dev, size: size, want: make([]byte, size), seed: dev.Info().Serial << 32}
	var err error
	if c.stream, err = dev.NewStream(); err != nil {
		return nil, err
	}
	if c.host, err = dev.AllocDMA(size); err != nil {
		return nil, err
	}
	c.ptr, err = dev.Malloc(uint64(size))
	return c, err
}

// way is a way to copy: what comes before, what is measured, and the check
// that the bytes are the right ones.
type way struct{ prepare, once, check func(*copier) error }

var (
	// deviceToHost is DMA writes by the device.
	deviceToHost = way{(*copier).fillDevice, (*copier).toHost, (*copier).checkHost}
	// hostToDevice is DMA reads by the device.
	hostToDevice = way{(*copier).fillHost, (*copier).toDevice, (*copier).checkDevice}
	// cpuWrites is posted writes of the CPU, with a read at the end that waits for them.
	cpuWrites = way{(*copier).fillHost, (*copier).write, (*copier).checkDevice}
)

// probe measures GB/s of all copiers together: each copies until the time is
// over, and the last one ends it.
func (w way) probe(name string, all ...*copier) probe {
	return probe{name, func(d time.Duration) (float64, error) {
		if err := together(all, w.prepare); err != nil {
			return 0, err
		}
		var mu sync.Mutex
		total := 0
		start := time.Now()
		err := together(all, func(c *copier) error {
			for { // once at least: the check looks for it
				if err := w.once(c); err != nil {
					return err
				}
				mu.Lock()
				total += c.size
				mu.Unlock()
				if time.Since(start) >= d {
					return nil
				}
			}
		})
		rate := float64(total) / time.Since(start).Seconds() / 1e9
		return rate, errors.Join(err, together(all, w.check))
	}}
}

// together calls f for all at once and waits for all.
func together(all []*copier, f func(*copier) error) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, c := range all {
		wg.Go(func() { errs[i] = f(c) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// fillHost makes data that were never there before, and puts it in host memory.
func (c *copier) fillHost() error {
	c.seed++
	pattern(c.want, c.seed)
	copy(c.host.Bytes(), c.want)
	return nil
}

// fillDevice puts new data in the device's memory and takes it out of the host's.
func (c *copier) fillDevice() error {
	err := errors.Join(c.fillHost(), c.toDevice())
	clear(c.host.Bytes())
	return err
}

func (c *copier) toDevice() error {
	if err := c.stream.CopyToDevice(c.ctx, c.ptr, c.host, 0, c.size); err != nil {
		return err
	}
	return c.stream.Sync(c.ctx)
}

func (c *copier) toHost() error {
	if err := c.stream.CopyToHost(c.ctx, c.host, 0, c.ptr, c.size); err != nil {
		return err
	}
	return c.stream.Sync(c.ctx)
}

func (c *copier) write() error {
	return errors.Join(c.dev.WriteAperture(c.ptr, c.want), c.dev.Flush())
}

func (c *copier) checkHost() error { return same(c.host.Bytes()[:c.size], c.want) }

// checkDevice fetches what the device has and compares it.
func (c *copier) checkDevice() error {
	clear(c.host.Bytes())
	return errors.Join(c.toHost(), c.checkHost())
}
