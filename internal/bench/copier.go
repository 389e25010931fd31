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
	// The serial number makes the data of each device unique: the check finds bytes
	// of another binding.
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

// way is a way to copy: the preparation, the measured copy, and the check of the
// bytes.
type way struct{ prepare, once, check func(*copier) error }

var (
	// deviceToHost is DMA writes by the device.
	deviceToHost = way{(*copier).fillDevice, (*copier).toHost, (*copier).checkHost}
	// hostToDevice is DMA reads by the device.
	hostToDevice = way{(*copier).fillHost, (*copier).toDevice, (*copier).checkDevice}
	// cpuWrites is posted writes of the CPU, with a read at the end that waits for them.
	cpuWrites = way{(*copier).fillHost, (*copier).write, (*copier).checkDevice}
)

// probe measures the total GB/s of all copiers: each copies until the duration is
// over; the end of the last copy ends the measurement.
func (w way) probe(name string, all ...*copier) probe {
	return probe{name, func(d time.Duration) (float64, error) {
		if err := together(all, w.prepare); err != nil {
			return 0, err
		}
		var mu sync.Mutex
		total := 0
		start := time.Now()
		err := together(all, func(c *copier) error {
			for { // at least once: the check needs the data
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

// together calls f for all copiers concurrently and waits for all calls.
func together(all []*copier, f func(*copier) error) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, c := range all {
		wg.Go(func() { errs[i] = f(c) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// fillHost makes new data and puts it in host memory.
func (c *copier) fillHost() error {
	c.seed++
	pattern(c.want, c.seed)
	copy(c.host.Bytes(), c.want)
	return nil
}

// fillDevice puts new data in the device's memory and clears the host's.
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

// checkDevice copies the device's data to the host and compares it.
func (c *copier) checkDevice() error {
	clear(c.host.Bytes())
	return errors.Join(c.toHost(), c.checkHost())
}
