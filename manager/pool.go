package manager

import (
	"cmp"
	"strconv"
	"strings"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// pool sums up; the metrics are made of it too.
func (m *Manager) pool() *dxpuv1.Pool {
	p := &dxpuv1.Pool{}
	_ = m.view(func(t *tx) error {
		t.sum(p)
		return nil
	})
	return p
}

func (t *tx) sum(p *dxpuv1.Pool) {
	p.ClusterId, p.Version, p.Revision = t.meta.ClusterID, t.cfg.Version, t.meta.Revision
	usable, free := map[string]int{}, map[string]int{}
	for _, n := range t.nodesOf(dxpuv1.NodeKind_NODE_KIND_HOST, nil) {
		p.Hosts++
		if t.connected(n.ID) {
			p.HostsConnected++
		}
	}
	for _, n := range t.nodesOf(dxpuv1.NodeKind_NODE_KIND_BOX, nil) {
		p.Boxes++
		if t.connected(n.ID) {
			p.BoxesConnected++
		}
		for _, g := range t.boxMessage(n).Gpus {
			p.Gpus++
			if g.Health == dxpuv1.Health_HEALTH_OK && !g.Cordoned {
				usable[g.Device.Model]++
			}
			switch g.State {
			case dxpuv1.GPUState_GPU_STATE_FREE:
				p.GpusFree++
				free[g.Device.Model]++
			case dxpuv1.GPUState_GPU_STATE_BOUND:
				p.GpusBound++
			default:
				p.GpusUnavailable++
			}
		}
	}
	for model, n := range usable {
		p.SparesHeld += uint32(min(t.cfg.Reserve.Held(n), free[model]))
	}
	for _, id := range t.leases.ids() {
		l := t.leases.get(id)
		switch {
		case l.State == leasePending:
			p.LeasesPending++
		case l.holds():
			p.LeasesActive++
		}
	}
}

func leaseKey(id string) string {
	n, _ := strconv.ParseUint(strings.TrimPrefix(id, "l-"), 10, 64)
	return sortable("", n)
}

func compareText(a, b string) int { return cmp.Compare(a, b) }
