package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"time"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
	"github.com/dxpu-project/dxpu/internal/quantile"
)

// PlacementOptions describe the pools of Placement. Zero values stand for the
// defaults.
type PlacementOptions struct {
	GPUs  []int // sizes of pools; default 512 and 100,000
	Hosts []int // numbers of hosts; default 64 and 10,000
	// Decisions is the number of decisions of the index for each kind of request,
	// each after a change of the pool; default 4000.
	Decisions int
	// Scans is the largest number of them that the scan decides as well; default 200.
	Scans    int
	Progress func(format string, args ...any) // as in Options
}

func (o *PlacementOptions) setDefaults() {
	if len(o.GPUs) == 0 {
		o.GPUs = []int{512, 100_000}
	}
	if len(o.Hosts) == 0 {
		o.Hosts = []int{64, 10_000}
	}
	if o.Decisions == 0 {
		o.Decisions = 4000
	}
	if o.Scans == 0 {
		o.Scans = 200
	}
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
}

// PlacementReport holds the times of decisions.
type PlacementReport struct {
	Processors int             `json:"processors"`
	Go         string          `json:"go"`
	Rows       []PlacementTime `json:"rows"`
}

// PlacementTime holds the times of one kind of request in one pool, in microseconds.
type PlacementTime struct {
	Pool     string  `json:"pool"`
	Request  string  `json:"request"`
	IndexP50 float64 `json:"index_p50_us"`
	IndexP99 float64 `json:"index_p99_us"`
	// Placed is the share of the requests that were placed.
	Placed float64 `json:"placed,omitempty"`
	// ScanP50 and ScanP99 are the times of the straightforward scan for the same
	// decisions; 0 for a change, of which the scan needs no update.
	ScanP50 float64 `json:"scan_p50_us,omitempty"`
	ScanP99 float64 `json:"scan_p99_us,omitempty"`
	Ratio   float64 `json:"ratio,omitempty"` // ScanP50 over IndexP50
}

// Placement measures the decisions of the index beside those of the scan, in
// pools that change in between. Decisions that differ are an error.
func Placement(ctx context.Context, o PlacementOptions) (*PlacementReport, error) {
	o.setDefaults()
	r := &PlacementReport{Processors: runtime.NumCPU(), Go: runtime.Version()}
	for _, n := range o.GPUs {
		rows, err := o.gpus(ctx, n)
		if err != nil {
			return nil, err
		}
		r.Rows = append(r.Rows, rows...)
	}
	for _, n := range o.Hosts {
		rows, err := o.hosts(ctx, n)
		if err != nil {
			return nil, err
		}
		r.Rows = append(r.Rows, rows...)
	}
	return r, nil
}

// decision is one kind of request: both ways to decide it, and the change after it.
type decision[D any] struct {
	name        string
	index, scan func() D
	placed      func(D) bool
	accept      func(D) // changes the pool; it is timed as well
}

// timings holds measured times in microseconds.
type timings struct{ index, scan, change []float64 }

// measure alternates the two ways.
func measure[D any](ctx context.Context, o *PlacementOptions, pool string, d decision[D]) (*PlacementTime, []float64, error) {
	o.Progress("%s: %s", pool, d.name)
	var t timings
	every, placed := max(1, o.Decisions/o.Scans), 0
	for i := range o.Decisions {
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		at := time.Now()
		got := d.index()
		t.index = append(t.index, since(at))
		if d.placed(got) {
			placed++
		}
		if i%every == 0 {
			at = time.Now()
			want := d.scan()
			t.scan = append(t.scan, since(at))
			if !reflect.DeepEqual(got, want) {
				return nil, nil, fmt.Errorf("bench: %s: %s: the index decides %+v, the scan %+v", pool, d.name, got, want)
			}
		}
		at = time.Now()
		d.accept(got)
		t.change = append(t.change, since(at))
	}
	row := &PlacementTime{
		Pool: pool, Request: d.name, IndexP50: median(t.index), IndexP99: quantile.Of(t.index, 0.99),
		Placed: float64(placed) / float64(o.Decisions), ScanP50: median(t.scan), ScanP99: quantile.Of(t.scan, 0.99),
	}
	row.Ratio = row.ScanP50 / row.IndexP50
	return row, t.change, nil
}

func since(at time.Time) float64 { return float64(time.Since(at).Nanoseconds()) / 1e3 }

// Shape of the pools: boxes of eight, every third with NVLink, of four models.
const (
	gpusPerBox   = 8
	proxyGPUs    = 6
	slotsPerHost = 16
	// hostFill is the share of the host slots in use.
	hostFill = 0.7
	// held is the number of leases of a kind before the oldest one is released.
	held = 8
)

// gpuWorld is a pool in both forms.
type gpuWorld struct {
	rng   *rand.Rand
	boxes []placement.Box
	at    map[string]int // index into boxes by ID
	pool  *placement.Pool
	held  [][]placement.Ref // leases, oldest first
}

func newGPUWorld(gpus int) *gpuWorld {
	w := &gpuWorld{rng: rand.New(rand.NewPCG(1, uint64(gpus))), at: map[string]int{}, pool: placement.NewPool()}
	models := []string{"A100", "H100", "T4", "V100"}
	for n := 0; n < gpus; n += gpusPerBox {
		i := n / gpusPerBox
		b := placement.Box{ID: fmt.Sprintf("box-%05d", i), Kind: placement.PCIeSwitch, Location: placement.Location{Rack: fmt.Sprintf("rack-%d", i/8)}, ProxyGPUs: proxyGPUs}
		if i%3 == 0 {
			b.Kind = placement.NVLink
		}
		for s := range min(gpusPerBox, gpus-n) {
			g := placement.GPU{Slot: uint32(s), Model: models[i%len(models)], Memory: 80 << 30, Usable: true, Free: true}
			if b.Kind == placement.NVLink {
				g.Domain = "nvlink"
			}
			b.GPUs = append(b.GPUs, g)
		}
		w.at[b.ID] = len(w.boxes)
		w.boxes = append(w.boxes, b)
		w.pool.SetBox(b)
	}
	w.fillBoxes()
	return w
}

// fillBoxes binds seven tenths of a pool, as best-fit placement would: of ten boxes
// six are full, two are partly full and two are empty.
func (w *gpuWorld) fillBoxes() {
	for _, b := range w.boxes {
		n := len(b.GPUs)
		switch kind := w.rng.IntN(10); {
		case kind >= 8:
			n = 0
		case kind >= 6:
			n = w.rng.IntN(n + 1)
		}
		for s := range n {
			w.bind(placement.Ref{Box: b.ID, Slot: uint32(s)}, true)
		}
	}
}

// bind binds or releases a GPU.
func (w *gpuWorld) bind(r placement.Ref, take bool) {
	g := &w.boxes[w.at[r.Box]].GPUs[r.Slot]
	g.Free = !take
	w.pool.SetGPU(r.Box, *g)
}

// accept binds the decision's GPUs and releases the oldest lease.
func (w *gpuWorld) accept(d placement.Decision) {
	for _, p := range d.Picks {
		w.bind(p, true)
	}
	w.held = append(w.held, d.Picks)
	if len(w.held) > held {
		w.release(1)
	}
}

func (w *gpuWorld) release(n int) {
	for _, lease := range w.held[:n] {
		for _, p := range lease {
			w.bind(p, false)
		}
	}
	w.held = w.held[n:]
}

// gpus measures all kinds of requests for GPUs in a pool.
func (o *PlacementOptions) gpus(ctx context.Context, n int) ([]PlacementTime, error) {
	w := newGPUWorld(n)
	reserve := placement.Reserve{Count: 2}
	pool := fmt.Sprintf("%d GPUs, %d boxes", n, len(w.boxes))
	var rows []PlacementTime
	var changes []float64
	for _, r := range []struct {
		name string
		req  placement.Request
	}{
		{"1, any model", placement.Request{Count: 1}},
		{"1 of a model", placement.Request{Count: 1, Model: "V100"}},
		{"2 of a model", placement.Request{Count: 2, Model: "A100"}},
		{"4, any model", placement.Request{Count: 4}},
		{"4, NVLink required", placement.Request{Count: 4, NVLink: placement.Required}},
		{"8 of a model", placement.Request{Count: 8, Model: "T4"}},
		{"8, one box", placement.Request{Count: 8, SameBox: placement.Required}},
		{"8, spread over boxes", placement.Request{Count: 8, Model: "H100", SameBox: placement.Avoided}},
	} {
		row, change, err := measure(ctx, o, pool, decision[placement.Decision]{
			name:   r.name,
			index:  func() placement.Decision { return w.pool.Place(reserve, r.req) },
			scan:   func() placement.Decision { return placement.Place(w.boxes, reserve, r.req) },
			placed: func(d placement.Decision) bool { return d.OK() },
			accept: w.accept,
		})
		if err != nil {
			return nil, err
		}
		w.release(len(w.held))
		rows = append(rows, *row)
		if r.req.Count == 1 {
			changes = append(changes, change...)
		}
	}
	rows = append(rows, PlacementTime{
		Pool: pool, Request: "bind one, release one", IndexP50: median(changes), IndexP99: quantile.Of(changes, 0.99),
	})
	leases, err := o.leases(ctx, w, n)
	return append(rows, leases...), err
}

// hosts measures all kinds of requests for slots of hosts.
func (o *PlacementOptions) hosts(ctx context.Context, n int) ([]PlacementTime, error) {
	rng := rand.New(rand.NewPCG(2, uint64(n)))
	index := placement.NewHosts()
	hosts := make([]placement.Host, n)
	for i := range hosts {
		hosts[i] = placement.Host{ID: fmt.Sprintf("host-%05d", i), Usable: true, Labels: map[string]string{"zone": fmt.Sprint(i % 8)}}
		for s := range slotsPerHost {
			hosts[i].Slots = append(hosts[i].Slots, placement.HostSlot{Slot: uint32(s), Domain: "vm0", Free: rng.Float64() > hostFill})
		}
		index.SetHost(hosts[i])
	}
	pool := fmt.Sprintf("%d hosts", n)
	var rows []PlacementTime
	var changes []float64
	for _, r := range []struct {
		name string
		req  placement.HostRequest
	}{
		{"4 slots, any host", placement.HostRequest{Count: 4}},
		{"1 slot of a host", placement.HostRequest{Count: 1, Host: hosts[n/2].ID}},
		{"4 slots, a label", placement.HostRequest{Count: 4, Labels: map[string]string{"zone": "3"}}},
	} {
		row, change, err := measure(ctx, o, pool, decision[placement.HostDecision]{
			name:   r.name,
			index:  func() placement.HostDecision { return index.Place(r.req) },
			scan:   func() placement.HostDecision { return placement.PlaceHost(hosts, r.req) },
			placed: func(d placement.HostDecision) bool { return d.OK() },
			accept: func(placement.HostDecision) {
				h, s := &hosts[rng.IntN(n)], rng.IntN(slotsPerHost)
				h.Slots[s].Free = !h.Slots[s].Free
				index.SetSlot(h.ID, h.Slots[s])
			},
		})
		if err != nil {
			return nil, err
		}
		rows, changes = append(rows, *row), append(changes, change...)
	}
	return append(rows, PlacementTime{
		Pool: pool, Request: "bind or release a slot", IndexP50: median(changes), IndexP99: quantile.Of(changes, 0.99),
	}), nil
}
