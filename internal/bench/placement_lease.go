package bench

import (
	"context"
	"fmt"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// gpusPerHost is the number of GPUs in the pool for each host.
const gpusPerHost = 10

// leaseDecision is a decision on GPUs and host together.
type leaseDecision struct {
	GPUs placement.Decision
	Host placement.HostDecision
}

// leases measures requests for GPUs and host slots together: the hosts are in the racks of
// the boxes, and every second rack has no free slot.
func (o *PlacementOptions) leases(ctx context.Context, w *gpuWorld, gpus int) ([]PlacementTime, error) {
	index := placement.NewHosts()
	var hosts []placement.Host
	racks := (len(w.boxes) + 7) / 8
	for i := range max(2, gpus/gpusPerHost) {
		h := placement.Host{ID: fmt.Sprintf("host-%05d", i), Location: placement.Location{Rack: fmt.Sprintf("rack-%d", i%racks)}, Usable: true}
		for s := range slotsPerHost {
			h.Slots = append(h.Slots, placement.HostSlot{Slot: uint32(s), Domain: "vm0", Free: i%racks%2 == 1})
		}
		hosts = append(hosts, h)
		index.SetHost(h)
	}
	var rows []PlacementTime
	for _, r := range []struct {
		name string
		req  placement.HostRequest
	}{
		{"4 and a host near them", placement.HostRequest{Count: 4}},
		{"4 near a host", placement.HostRequest{Count: 4, Host: hosts[1].ID}},
	} {
		req := placement.Request{Count: 4}
		row, _, err := measure(ctx, o, fmt.Sprintf("%d GPUs, %d hosts", gpus, len(hosts)), decision[leaseDecision]{
			name: r.name,
			index: func() (d leaseDecision) {
				d.GPUs, d.Host = w.pool.PlaceLease(index, placement.Reserve{Count: 2}, req, r.req)
				return d
			},
			scan: func() (d leaseDecision) {
				d.GPUs, d.Host = placement.PlaceLease(w.boxes, hosts, placement.Reserve{Count: 2}, req, r.req)
				return d
			},
			placed: func(d leaseDecision) bool { return d.GPUs.OK() && d.Host.OK() },
			accept: func(d leaseDecision) { w.accept(d.GPUs) },
		})
		if err != nil {
			return nil, err
		}
		w.release(len(w.held))
		rows = append(rows, *row)
	}
	return rows, nil
}
