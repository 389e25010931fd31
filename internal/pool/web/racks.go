package web

import (
	"cmp"
	"context"
	"crypto/sha256"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/singleflight"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// maxDrawn is the largest pool, in GPUs, whose every slot is drawn. The page of a
// larger pool shows the totals of racks, and draws one rack at a time.
const maxDrawn = 1024

// rack is the boxes of one rack.
type rack struct {
	Name   string // empty: boxes that do not report a rack
	Boxes  []boxView
	Counts counts
	Silent int // boxes that do not report
	Hit    int // leased GPUs in them
	ids    []string
}

// Size returns the number of boxes.
func (r *rack) Size() int { return len(r.ids) }

// boxView is a box in the map.
type boxView struct {
	ID     string
	Kind   string
	Node   *dxpuv1.NodeInfo
	Slots  []slotView
	Counts counts
}

// leased returns the number of leased GPUs.
func (b *boxView) leased() int {
	n := 0
	for _, s := range b.Slots {
		if s.GPU.GetLeaseId() != "" {
			n++
		}
	}
	return n
}

// slotView is a slot in the map.
type slotView struct {
	Slot uint32
	Kind kind
	GPU  *dxpuv1.GPU // nil: empty
	Dim  bool        // does not pass the filter
}

func newBoxView(b *dxpuv1.Box) boxView {
	v := boxView{ID: b.GetNode().GetId(), Kind: word(b.Kind), Node: b.Node}
	for _, g := range b.Gpus {
		v.Slots = append(v.Slots, slotView{Slot: g.Slot, Kind: kindOf(g), GPU: g})
	}
	for _, n := range b.EmptySlots {
		v.Slots = append(v.Slots, slotView{Slot: n, Kind: empty})
	}
	slices.SortFunc(v.Slots, func(a, b slotView) int { return cmp.Compare(a.Slot, b.Slot) })
	for _, s := range v.Slots {
		v.Counts[s.Kind]++
	}
	return v
}

// byRack groups boxes by rack. Without slots, the racks have totals only.
func byRack(boxes []*dxpuv1.Box, slots bool) []rack {
	at := map[string]*rack{}
	for _, b := range boxes {
		name := b.GetNode().GetRack()
		r := at[name]
		if r == nil {
			r = &rack{Name: name}
			at[name] = r
		}
		v := newBoxView(b)
		r.Counts.add(v.Counts)
		r.ids = append(r.ids, v.ID)
		if !v.Node.GetConnected() {
			r.Silent++
			r.Hit += v.leased()
		}
		if slots {
			r.Boxes = append(r.Boxes, v)
		}
	}
	return sortedRacks(at)
}

func sortedRacks(at map[string]*rack) []rack {
	out := make([]rack, 0, len(at))
	for _, r := range at {
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b rack) int { return compareNatural(a.Name, b.Name) })
	return out
}

// compareNatural compares names with numbers by value: r2 is before r10.
func compareNatural(a, b string) int {
	for a != "" && b != "" {
		da, db := digits(a), digits(b)
		if da > 0 && db > 0 {
			na, nb := strings.TrimLeft(a[:da], "0"), strings.TrimLeft(b[:db], "0")
			if c := cmp.Or(cmp.Compare(len(na), len(nb)), cmp.Compare(na, nb)); c != 0 {
				return c
			}
			a, b = a[da:], b[db:]
			continue
		}
		if c := cmp.Compare(a[0], b[0]); c != 0 {
			return c
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

// digits returns the number of leading digits.
func digits(s string) int { return len(s) - len(strings.TrimLeft(s, "0123456789")) }

// rackCache caches the totals of all GPUs of a large pool by the viewers' access.
type rackCache struct {
	flight singleflight.Group
	mu     sync.Mutex
	kept   map[[sha256.Size]byte]rackTotals
}

// rackTotals is the totals of a large pool at one time.
type rackTotals struct {
	racks []rack
	at    time.Time
	until time.Time
}

const (
	// keepFactor bounds the walks to a tenth of a CPU: totals are kept ten times as long.
	keepFactor = 10
	// maxKept bounds the cached totals.
	maxKept = 64
)

// get returns cached totals, or those of walk. scope names the viewer's access.
func (c *rackCache) get(scope string, now func() time.Time, walk func() ([]rack, error)) (rackTotals, error) {
	key := sha256.Sum256([]byte(scope))
	c.mu.Lock()
	sums, ok := c.kept[key]
	c.mu.Unlock()
	if ok && now().Before(sums.until) {
		return sums, nil
	}
	v, err, _ := c.flight.Do(string(key[:]), func() (any, error) {
		start := now()
		racks, err := walk()
		if err != nil {
			return nil, err
		}
		end := now()
		sums := rackTotals{racks: racks, at: end, until: end.Add(min(time.Minute, keepFactor*end.Sub(start)))}
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.kept) >= maxKept {
			clear(c.kept)
		}
		c.kept[key] = sums
		return sums, nil
	})
	if err != nil {
		return rackTotals{}, err
	}
	return v.(rackTotals), nil
}

// walkBoxes calls visit with all boxes, maxFetch at a time.
func walkBoxes(ctx context.Context, api dxpuv1connect.PoolServiceClient, visit func([]*dxpuv1.Box)) error {
	req := &dxpuv1.ListBoxesRequest{PageSize: maxFetch}
	for {
		res, err := api.ListBoxes(ctx, connect.NewRequest(req))
		if err != nil {
			return err
		}
		visit(res.Msg.Boxes)
		if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
			return nil
		}
	}
}

// sumRacks returns the totals of all racks.
func sumRacks(ctx context.Context, api dxpuv1connect.PoolServiceClient) ([]rack, error) {
	at := map[string]*rack{}
	err := walkBoxes(ctx, api, func(boxes []*dxpuv1.Box) {
		for _, r := range byRack(boxes, false) {
			if old := at[r.Name]; old != nil {
				old.Counts.add(r.Counts)
				old.ids = append(old.ids, r.ids...)
				old.Silent += r.Silent
				old.Hit += r.Hit
				continue
			}
			at[r.Name] = &r
		}
	})
	return sortedRacks(at), err
}
