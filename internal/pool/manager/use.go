package manager

import "maps"

// use is what a tenant has.
type use struct {
	gpus, leases     uint32
	pending, holding uint32 // leases that wait, leases that have GPUs or get some
	byModel          map[string]uint32
}

// minusOne takes away where one is added: unsigned numbers wrap round.
const minusOne = ^uint32(0)

// count adds what a lease stands for, or takes it away: its GPUs from when they
// are chosen until the last of them has been given back.
func (x *index) count(k *leaseEntry, sign uint32) {
	if k.tenant == "" {
		return
	}
	u := x.uses[k.tenant]
	if u == nil {
		u = &use{byModel: map[string]uint32{}}
		x.uses[k.tenant] = u
	}
	if u.leases += sign; u.leases == 0 {
		delete(x.uses, k.tenant)
		return
	}
	if k.shape != "" {
		u.pending += sign
		return
	}
	if k.holds {
		u.holding += sign
	}
	u.gpus += sign * k.gpus
	if u.byModel[k.model] += sign * k.gpus; u.byModel[k.model] == 0 {
		delete(u.byModel, k.model)
	}
}

// useOf returns what a tenant has.
func (t *tx) useOf(tenant string) use {
	t.reindex()
	u := t.uses[tenant]
	if u == nil {
		return use{}
	}
	out := *u
	out.byModel = maps.Clone(u.byModel)
	return out
}
