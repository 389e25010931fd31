package capacity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"golang.org/x/sync/errgroup"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
)

const (
	checkReads = 16       // registers read of each GPU
	checkSize  = 64 << 10 // bytes copied each way
)

// driveAll uses every GPU from its host, some at a time, while all are attached.
func (w *world) driveAll(ctx context.Context, all []*attachment) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4) // more would wait for a processor
	serials := make([]uint64, len(all))
	for i, a := range all {
		g.Go(func() (err error) {
			if serials[i], err = w.drive(ctx, a); err != nil {
				return fmt.Errorf("GPU %s in %s slot %d: %w", a.binding.GpuId, a.binding.HostId, a.binding.HostSlot, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	seen := map[uint64]bool{}
	for _, s := range serials {
		if seen[s] {
			return fmt.Errorf("two slots show the GPU with serial number %d", s)
		}
		seen[s] = true
	}
	return nil
}

// drive opens a GPU with the driver of its host, reads registers and copies data to
// it and back. It returns the serial number.
func (w *world) drive(ctx context.Context, a *attachment) (serial uint64, err error) {
	front := w.hosts[a.binding.HostId]
	if front == nil {
		return 0, errors.New("the lease names an unknown host")
	}
	bus, err := front.Open(int(a.binding.HostSlot))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, bus.Close()) }()
	dev, err := driver.Open(ctx, bus, driver.Options{})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	serial = dev.Info().Serial
	for range checkReads {
		if err := dev.Alive(); err != nil { // reads a register that is never all ones
			return 0, err
		}
	}
	return serial, copyBothWays(ctx, dev)
}

// copyBothWays copies data that is unique to the GPU to the device and back by DMA.
func copyBothWays(ctx context.Context, dev *driver.Device) (err error) {
	stream, err := dev.NewStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	ptr, err := dev.Malloc(checkSize)
	if err != nil {
		return err
	}
	host, err := dev.AllocDMA(checkSize)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Free()) }()
	want := make([]byte, checkSize)
	r := rand.NewChaCha8([32]byte{byte(dev.Info().Serial), byte(dev.Info().Serial >> 8), byte(dev.Info().Serial >> 16)})
	_, _ = r.Read(want) // never fails
	copy(host.Bytes(), want)
	if err := errors.Join(stream.CopyToDevice(ctx, ptr, host, 0, checkSize), stream.Sync(ctx)); err != nil {
		return err
	}
	clear(host.Bytes())
	if err := errors.Join(stream.CopyToHost(ctx, host, 0, ptr, checkSize), stream.Sync(ctx)); err != nil {
		return err
	}
	got := host.Bytes()[:checkSize]
	if !bytes.Equal(got, want) {
		return errors.New("the bytes read by DMA differ from those written")
	}
	return nil
}
