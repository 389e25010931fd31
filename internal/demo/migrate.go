package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/localpool"
)

// migrate moves the leased GPU to the other box while the program uses it.
func (d *demo) migrate(ctx context.Context) (string, error) {
	b, err := d.active(ctx)
	if err != nil {
		return "", err
	}
	// The check after that of the registers copies data.
	out := &progress{until: "registers", seen: make(chan struct{})}
	ended := make(chan error, 1)
	go func() { ended <- d.pc.test(ctx, out) }()
	select {
	case <-out.seen:
	case err := <-ended:
		return "", fmt.Errorf("the program ended before the GPU moved: %w", errors.Join(err, errors.New(out.String())))
	}
	moved, err := d.moveLive(ctx)
	if err = errors.Join(err, <-ended); err != nil {
		return "", err
	}
	d.figure("live migration, the device stands still", moved.standstill)
	return fmt.Sprintf("%s -> %s, in another box; the device stood still for %.1f ms, and the program went on:\n%s",
		b.GpuId, moved.to, milliseconds(moved.standstill), lastLine(out.String())), nil
}

// move is a live migration that has ended well.
type move struct {
	to         string
	standstill time.Duration
}

// moveLive moves the GPU of the lease and waits for the end of the migration.
func (d *demo) moveLive(ctx context.Context) (done move, err error) {
	res, err := d.api.MigrateLease(ctx, connect.NewRequest(&dxpuv1.MigrateLeaseRequest{LeaseId: d.lease}))
	if err != nil {
		return move{}, err
	}
	next := res.Msg.Binding.GetId()
	err = localpool.Poll(ctx, func() (bool, error) {
		lease, err := d.getLease(ctx, d.lease)
		if err != nil {
			return false, err
		}
		for _, b := range lease.Bindings {
			switch {
			case b.Id != next:
			case b.State == dxpuv1.BindingState_BINDING_STATE_ATTACHED:
				done.to = b.GpuId
				for _, s := range b.Timeline {
					if s.Name == "standstill" {
						done.standstill = s.Duration.AsDuration()
						return true, nil
					}
				}
			case b.State == dxpuv1.BindingState_BINDING_STATE_FAILED || b.State == dxpuv1.BindingState_BINDING_STATE_RELEASED:
				return false, fmt.Errorf("the GPU has not moved: %s", b.Detail)
			}
		}
		return false, nil
	})
	return done, err
}
