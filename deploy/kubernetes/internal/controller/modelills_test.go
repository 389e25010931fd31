package controller

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// ills are what is wrong with a pool for a time, beside its leases.
type ills struct {
	noTenant bool   // the tenant of all claims has been deleted
	box      string // does not report any more
	host     string // does not report any more
	gpu      string // is degraded
	pulled   string // a GPU that has left the pool, while no lease has it
}

// ail makes something wrong with the pool, and returns what.
func (m *modelManager) ail(r *rand.Rand) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := modelGPUs()
	defer m.tellLocked()
	switch r.IntN(5) {
	case 0:
		m.ills.noTenant = true
		return "tenants deleted"
	case 1:
		m.ills.box = modelBoxes[r.IntN(len(modelBoxes))].id
		return "boxes lost"
	case 2:
		m.ills.host = fmt.Sprintf("h%d", 1+r.IntN(modelHosts))
		return "hosts lost"
	case 3:
		m.ills.gpu = all[r.IntN(len(all))].id
		return "GPUs degraded"
	default:
		m.ills.pulled = all[r.IntN(len(all))].id
		return "GPUs pulled"
	}
}

// heal ends what is wrong with the pool.
func (m *modelManager) heal() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ills = ills{}
	m.tellLocked()
}

// tellLocked tells those that watch the events that something has changed.
func (m *modelManager) tellLocked() {
	for e := range m.events {
		select {
		case e <- struct{}{}:
		default:
		}
	}
}

// tenantErr is the answer to a request for a lease of a tenant that there is not.
func (m *modelManager) tenantErr() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ills.noTenant {
		return connect.NewError(connect.CodeNotFound, errors.New(noTenant))
	}
	return nil
}

const noTenant = `tenant "lab" does not exist`

// ailing returns a GPU as the pool shows it, nil if it has left the pool.
func (m *modelManager) ailing(g *dxpuv1.GPU) *dxpuv1.GPU {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case g.Id == m.ills.pulled && g.State == dxpuv1.GPUState_GPU_STATE_FREE:
		return nil
	case g.BoxId == m.ills.box:
		g.Health, g.HealthDetail = dxpuv1.Health_HEALTH_UNREACHABLE, "the box does not report"
		if g.State == dxpuv1.GPUState_GPU_STATE_FREE {
			g.State = dxpuv1.GPUState_GPU_STATE_UNAVAILABLE
		}
	case g.Id == m.ills.gpu:
		g.Health, g.HealthDetail = dxpuv1.Health_HEALTH_DEGRADED, "12 corrected errors"
	}
	return g
}

// lostNode shows a node as one that has reported, and does no more.
func (m *modelManager) lostNode(n *dxpuv1.NodeInfo) *dxpuv1.NodeInfo {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n.Id == m.ills.box || n.Id == m.ills.host {
		n.Connected = false
	}
	return n
}
