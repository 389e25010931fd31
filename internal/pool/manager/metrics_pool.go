package manager

import (
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

const (
	// maxTenantMetrics bounds the tenants with metrics of their own. All together are in
	// the metrics of the pool.
	maxTenantMetrics = 1000
	// maxSickMetrics bounds the GPUs with a metric of their own, those that are not
	// healthy: a rack without power is no reason for a thousand more.
	maxSickMetrics = 500
)

// poolCollector reports the pool as gauges. A manager that does not lead reports only
// that: zeros of three managers would add up to nonsense.
type poolCollector struct {
	m       *Manager
	details bool // report single tenants and GPUs instead of the pool as a whole
}

// Describe implements prometheus.Collector. It describes nothing, because the
// metrics depend on whether the manager is the leader.
func (*poolCollector) Describe(chan<- *prometheus.Desc) {}

// poolNumbers is what a scrape reads of the state, under its lock.
type poolNumbers struct {
	*dxpuv1.Pool
	health  map[string]uint32 // GPUs by health
	sick    []sickMetric
	tenants []tenantMetric
}

type sickMetric struct{ gpu, health string }

type tenantMetric struct {
	id                        string
	gpus                      milliGPU
	active, degraded, pending uint32
	maxGPUs                   uint32
	guaranteed                *uint32
}

// numbers reads the pool without waiting for the store, which may be what is slow.
func (c *poolCollector) numbers() (n *poolNumbers, ok bool) {
	n = &poolNumbers{Pool: &dxpuv1.Pool{}, health: map[string]uint32{"ok": 0, "degraded": 0, "failed": 0, "out_of_service": 0, "unreachable": 0}}
	err := c.m.peek(func(t *tx) error {
		t.addTotals(n.Pool)
		n.addHealth(t)
		if c.details {
			n.addTenants(t)
		}
		return nil
	})
	return n, err == nil
}

func (n *poolNumbers) addHealth(t *tx) {
	for id, e := range t.indexedNodes {
		if !t.connected(id) {
			n.health["unreachable"] += e.gpus
			continue
		}
		n.health["ok"] += e.gpus - uint32(len(e.sick))
		for _, s := range e.sick {
			n.health[s.how]++
			n.sick = append(n.sick, sickMetric{gpuID(id, s.slot), s.how})
		}
	}
	// The same ones in each scrape: others would be new series each time.
	slices.SortFunc(n.sick, func(a, b sickMetric) int { return strings.Compare(a.gpu, b.gpu) })
	n.sick = n.sick[:min(len(n.sick), maxSickMetrics)]
}

func (n *poolNumbers) addTenants(t *tx) {
	ids := map[string]bool{}
	for id := range t.usageByTenant {
		ids[id] = true
	}
	for id := range t.tenants.rows {
		ids[id] = true
	}
	all := slices.Sorted(maps.Keys(ids))
	for _, id := range all[:min(len(all), maxTenantMetrics)] {
		x := tenantMetric{id: id}
		if u := t.usageByTenant[id]; u != nil {
			x.gpus, x.active, x.degraded, x.pending = u.gpus, u.active, u.degraded, u.pending
		}
		if r := t.tenants.get(id); r != nil {
			x.maxGPUs, x.guaranteed = r.Quota.MaxGPUs, r.Quota.GuaranteedGPUs
		}
		n.tenants = append(n.tenants, x)
	}
}

// Collect implements prometheus.Collector.
func (c *poolCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(name, help string, v float64, labels ...string) {
		var names, values []string
		for i := 0; i+1 < len(labels); i += 2 {
			names, values = append(names, labels[i]), append(values, strings.ToValidUTF8(labels[i+1], ""))
		}
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc("dxpu_"+name, help, names, nil), prometheus.GaugeValue, v, values...)
	}
	n, leads := c.numbers()
	switch {
	case c.details && leads:
		n.emitDetails(gauge)
	case !c.details && leads:
		gauge("manager_leader", leaderHelp, 1)
		n.emitPool(func(name, help string, v uint32, labels ...string) { gauge("pool_"+name, help, float64(v), labels...) })
	case !c.details:
		gauge("manager_leader", leaderHelp, 0)
	}
}

const leaderHelp = "1 if this manager leads and has the state of the pool."

func (n *poolNumbers) emitDetails(gauge func(name, help string, v float64, labels ...string)) {
	const leases = "Leases of the tenant; active includes degraded."
	for _, s := range n.sick {
		gauge("gpu_problem", "1 for a GPU that is not healthy or out of service; at most 500.", 1, "gpu", s.gpu, "health", s.health)
	}
	for _, x := range n.tenants {
		gauge("tenant_gpus", "GPUs that count against the quota of the tenant, parts included: those of its leases, until they are released.", float64(x.gpus)/placement.Whole, "tenant", x.id)
		gauge("tenant_leases", leases, float64(x.active), "tenant", x.id, "state", "active")
		gauge("tenant_leases", leases, float64(x.degraded), "tenant", x.id, "state", "degraded")
		gauge("tenant_leases", leases, float64(x.pending), "tenant", x.id, "state", "pending")
		if x.maxGPUs > 0 {
			gauge("tenant_gpus_limit", "GPUs that the tenant may have; none if there is no limit.", float64(x.maxGPUs), "tenant", x.id)
		}
		if x.guaranteed != nil {
			gauge("tenant_gpus_guaranteed", "GPUs that the tenant can always have; more are borrowed.", float64(*x.guaranteed), "tenant", x.id)
		}
	}
}

func (n *poolNumbers) emitPool(gauge func(name, help string, v uint32, labels ...string)) {
	p := n.Pool
	const gpus, nodes, leases, use = "GPUs of the pool.", "Enrolled nodes.", "Leases; active includes degraded.", "GPUs in leases by how their guests use them."
	gauge("gpus", gpus, p.GpusFree, "state", "free")
	gauge("gpus", gpus, p.GpusBound, "state", "bound")
	gauge("gpus", gpus, p.GpusUnavailable, "state", "unavailable")
	for _, h := range slices.Sorted(maps.Keys(n.health)) {
		gauge("gpu_health", "GPUs by health; out_of_service: kept from new bindings because of their errors.", n.health[h], "health", h)
	}
	gauge("gpu_use", use, p.GpusIdle, "use", "idle")
	gauge("gpu_use", use, p.GpusHeld, "use", "held")
	gauge("gpu_use", use, p.GpusBusy, "use", "busy")
	gauge("hosts", nodes, p.HostsConnected, "state", "connected")
	gauge("hosts", nodes, p.Hosts-p.HostsConnected, "state", "lost")
	gauge("boxes", nodes, p.BoxesConnected, "state", "connected")
	gauge("boxes", nodes, p.Boxes-p.BoxesConnected, "state", "lost")
	wanted := uint32(0)
	for _, s := range p.Spares {
		wanted += s.Wanted
	}
	gauge("spares", "Free GPUs held back from ordinary leases, and how many the policy requires.", p.SparesHeld, "state", "held")
	gauge("spares", "Free GPUs held back from ordinary leases, and how many the policy requires.", wanted, "state", "wanted")
	gauge("leases", leases, p.LeasesActive, "state", "active")
	gauge("leases", leases, p.LeasesDegraded, "state", "degraded")
	gauge("leases", leases, p.LeasesPending, "state", "pending")
}
