package torture

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// reserved reports whether a lease begins later, and has nothing yet.
func reserved(l *dxpuv1.Lease) bool {
	return l.State == pending && l.Reservation != nil && l.QueuePosition == 0
}

// checkPromises reports GPUs that are promised to two leases at the same time.
func (p *pool) checkPromises(leases []*dxpuv1.Lease) {
	for i, a := range leases {
		for _, b := range leases[:i] {
			apart := !a.Spec.GetStartTime().AsTime().Before(b.GetExpireTime().AsTime()) || !b.Spec.GetStartTime().AsTime().Before(a.GetExpireTime().AsTime())
			if a.Reservation == nil || b.Reservation == nil || apart {
				continue
			}
			for _, gpu := range a.Reservation.GpuIds {
				if slices.Contains(b.Reservation.GpuIds, gpu) {
					p.violate("GPU %s is promised to leases %s and %s", gpu, a.Id, b.Id)
				}
			}
		}
	}
}

// reservation promises two GPUs: other leases without an end get the rest alone, and the
// lease has its GPUs when it begins.
func (e *exam) reservation() error {
	later, err := e.create(&dxpuv1.LeaseSpec{Count: 2, StartAfter: durationpb.New(2 * time.Second), ExpiresAfter: durationpb.New(time.Hour)})
	if err != nil {
		return err
	}
	if !reserved(later) || len(later.Reservation.GpuIds) != 2 {
		return fmt.Errorf("a lease that begins later is %v, with %v", later.State, later.Reservation)
	}
	leases := []string{later.Id}
	for err == nil {
		var l *dxpuv1.Lease
		if l, err = e.create(&dxpuv1.LeaseSpec{Count: 1}); err == nil {
			leases = append(leases, l.Id)
		}
	}
	if err := refused(err, "no capacity for this lease now"); err != nil {
		return err
	}
	if err := e.reaches(later.Id, active); err != nil {
		return err
	}
	l, err := e.lease(e.ctx, 0, 0, later.Id)
	if err != nil {
		return err
	}
	for _, b := range l.Bindings {
		if !slices.Contains(later.Reservation.GpuIds, b.GpuId) {
			return fmt.Errorf("%v were promised, and the lease has %s", later.Reservation.GpuIds, b.GpuId)
		}
	}
	for _, id := range leases {
		if err := e.end(id); err != nil {
			return err
		}
	}
	return e.settled(e.ctx, e.tenant, 0)
}
