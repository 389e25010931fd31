package manager

import (
	"fmt"
	"maps"
)

// Within a priority the tenant with the smallest dominant share goes first (dominant
// resource fairness). The resources are the GPUs of each model, and all GPUs. A share is
// the part of a resource that a tenant has; its largest one is the dominant one, which
// counts as divided by the tenant's weight. So a tenant with many cheap GPUs does not
// stand behind one with most of the few expensive ones.

// anyModel stands for all GPUs in sums by model.
const anyModel = ""

// sizes holds the number of usable GPUs by model, and of all.
type sizes map[string]int

func (t *tx) poolSizes() sizes {
	if t.sizes == nil {
		t.sizes = sizes{}
		for model, n := range t.gpuPool.Usable() {
			t.sizes[model] = n
			t.sizes[anyModel] += n
		}
	}
	return t.sizes
}

// share returns the weighted share that n of the GPUs of a model are for a tenant.
func (s sizes) share(model string, n, weight uint32) float64 {
	return float64(n) / float64(max(1, s[model])) / float64(max(1, weight))
}

// dominant returns the largest share of a tenant with GPUs of some models, and the model
// that it is of; anyModel: of all.
func (s sizes) dominant(all uint32, byModel map[string]uint32, weight uint32) (share float64, model string) {
	share = s.share(anyModel, all, weight)
	for m, n := range byModel {
		if v := s.share(m, n, weight); v > share || v == share && model != anyModel && m < model {
			share, model = v, m
		}
	}
	return share, model
}

func (t *tx) weight(tenant string) uint32 { return max(1, t.quota(tenant).Weight) }

// shareOf returns the dominant share of a tenant now.
func (t *tx) shareOf(tenant string) float64 {
	u := t.usageByTenant[tenant]
	if u == nil {
		return 0
	}
	share, _ := t.poolSizes().dominant(u.gpus, u.byModel, t.weight(tenant))
	return share
}

// shareText describes a tenant's share in a sentence about the queue.
func (t *tx) shareText(tenant string) string {
	u, w := t.usageByTenant[tenant], t.weight(tenant)
	text := fmt.Sprintf("tenant %s has %d GPUs", tenant, t.gpusOf(tenant))
	if u != nil {
		if share, model := t.poolSizes().dominant(u.gpus, u.byModel, 1); model != anyModel && len(t.poolSizes()) > 2 {
			text += fmt.Sprintf(", among them %.0f %% of model %s", 100*share, model)
		}
	}
	if w > 1 {
		text += fmt.Sprintf(" and weight %d", w)
	}
	return text
}

// lineShare returns a function for the share that a tenant will have when the turn of a
// lease in one of its lines comes: when its leases of higher priority and those before it
// in the line have got their GPUs.
func (t *tx) lineShare(tenant string, priority int32, l *queueLine) func(at int) float64 {
	weight, sizes := t.weight(tenant), t.poolSizes()
	base := map[string]uint32{}
	if u := t.usageByTenant[tenant]; u != nil {
		maps.Copy(base, u.byModel)
		base[anyModel] = u.gpus
	}
	for p, c := range t.waiting {
		if higher := c.lines[tenant]; p > priority && higher != nil {
			for model, sums := range higher.sums() {
				base[model] += sums[len(sums)-1]
			}
		}
	}
	before := l.sums()
	rest := 0.0 // the largest share of a model that the line does not ask for
	for model, n := range base {
		if before[model] == nil {
			rest = max(rest, sizes.share(model, n, weight))
		}
	}
	return func(at int) float64 {
		share := rest
		for model, sums := range before {
			share = max(share, sizes.share(model, base[model]+sums[at], weight))
		}
		return share
	}
}
