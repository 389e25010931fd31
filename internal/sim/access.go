package sim

import (
	"context"
	"errors"
	"fmt"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/internal/embedded"
	"github.com/dxpu-project/dxpu/internal/embedded/rootcomplex"
)

var _ embedded.Scheduler = (*World)(nil)

// errAbsent says that enumeration found nothing behind the link.
var errAbsent = errors.New("sim: no device answers behind the link")

// Open enumerates the bus as firmware does and returns the function of the
// device. Time passes, here and in the methods of the bus.
func (w *World) Open() (*embedded.Bus, error) {
	root, err := rootcomplex.Enumerate(w.host, w.enum)
	if err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	if len(root.Children) != 1 {
		return nil, errAbsent
	}
	return w.host.Open(root.Children[0])
}

// OpenGPU opens the device with the GPU's driver. Time passes, here and in the
// methods of the device.
func (w *World) OpenGPU(ctx context.Context, opts driver.Options) (*driver.Device, error) {
	bus, err := w.Open()
	if err != nil {
		return nil, err
	}
	return driver.Open(ctx, bus, opts)
}
