package manager

import (
	"fmt"
	"iter"
	"maps"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
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
func (s sizes) share(model string, n milliGPU, weight uint32) float64 {
	return float64(n) / placement.Whole / float64(max(1, s[model])) / float64(max(1, weight))
}

// dominant returns the largest share of a tenant with GPUs of some models, and the model
// that it is of; anyModel: of all.
func (s sizes) dominant(all milliGPU, byModel map[string]milliGPU, weight uint32) (share float64, model string) {
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

// turnOf returns the share by which a tenant is ordered in the queue now.
func (t *tx) turnOf(tenant string) float64 {
	return t.turn(tenant, t.gpusOf(tenant), t.shareOf(tenant))
}

// shareText describes a tenant's share in a sentence about the queue.
func (t *tx) shareText(tenant string) string {
	u, w := t.usageByTenant[tenant], t.weight(tenant)
	text := fmt.Sprintf("tenant %s has %s", tenant, t.gpusOf(tenant).counted("GPU", "GPUs"))
	if g, ok := t.guaranteeOf(tenant); ok {
		text += fmt.Sprintf(", with a guarantee of %v", g)
	}
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

// lineShares returns, for each lease in one of a tenant's lines, the share that the tenant
// will have when its turn comes: when the tenant's leases of higher priority and those
// before it in the line have got their GPUs. The shares grow along the line, so each
// follows from the one before and the models, which tenants may invent, cost nothing.
func (t *tx) lineShares(tenant string, priority int32, l *queueLine) iter.Seq2[int, float64] {
	return func(yield func(int, float64) bool) {
		weight, sizes := t.weight(tenant), t.poolSizes()
		has := map[string]milliGPU{}
		if u := t.usageByTenant[tenant]; u != nil {
			maps.Copy(has, u.byModel)
			has[anyModel] = u.gpus
		}
		for p, c := range t.waiting {
			if higher := c.lines[tenant]; p > priority && higher != nil {
				for model, n := range higher.total {
					has[model] += n
				}
			}
		}
		share := 0.0
		for model, n := range has {
			share = max(share, sizes.share(model, n, weight))
		}
		for i, a := range l.asks {
			if !yield(i, t.turn(tenant, has[anyModel], share)) {
				return
			}
			has[anyModel] += a.gpus
			share = max(share, sizes.share(anyModel, has[anyModel], weight))
			if a.model != anyModel {
				has[a.model] += a.gpus
				share = max(share, sizes.share(a.model, has[a.model], weight))
			}
		}
	}
}
