package process

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"
)

// Background runs functions until Close. The zero value is ready for use.
type Background struct{ stops []func() error }

// Go starts functions, which Close stops together.
func (b *Background) Go(functions ...func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var running errgroup.Group
	for _, f := range functions {
		running.Go(func() error { return f(ctx) })
	}
	b.stops = append(b.stops, func() error {
		cancel()
		return running.Wait()
	})
}

// Close stops the functions of the calls of Go in reverse order, waits for the end
// of each, and returns their errors. A second Close does nothing.
func (b *Background) Close() error {
	var errs []error
	for _, stop := range slices.Backward(b.stops) {
		errs = append(errs, stop())
	}
	b.stops = nil
	return errors.Join(errs...)
}
