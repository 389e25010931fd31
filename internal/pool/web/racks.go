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

// maxDrawn is the largest pool, in GPUs, of which every slot is drawn. A larger
// one is summed up by racks, and one rack is drawn at a time.
const maxDrawn = 1024

// rack is the boxes that stand together.
type rack struct {
	Name   string // empty: they do not say
	Boxes  []boxView
	Counts counts
	Silent int // boxes that do not report
	ids    []string
}

// Size is the number of boxes.
func (r *rack) Size() int { return len(r.ids) }

// boxView is a box as the map draws it.
type boxView struct {
	ID     string
	Kind   string
	Node   *dxpuv1.NodeInfo
	Slots  []slotView
	Counts counts
}

// leased counts the GPUs that leases have.
func (b *boxView) leased() int {
	n := 0
	for _, s := range b.Slots {
		if s.GPU.GetLeaseId() != "" {
			n++
		}
	}
	return n
}

// slotView is one square of the map.
type slotView struct {
	Slot uint32
	Kind kind
	GPU  *dxpuv1.GPU // nil: empty
	Dim  bool        // a filter leaves it out
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

// byRack groups boxes. Without slots only their numbers are kept.
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

// compareNatural orders r2 before r10.
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

// digits counts the digits with which a text begins.
func digits(s string) int { return len(s) - len(strings.TrimLeft(s, "0123456789")) }

// rackCache keeps the sums of large pools for a while: they cost a walk over
// every GPU. They are kept by what callers see, since that differs.
type rackCache struct {
	flight singleflight.Group
	mu     sync.Mutex
	kept   map[[sha256.Size]byte]rackSums
}

// rackSums is a large pool at one time.
type rackSums struct {
	racks []rack
	at    time.Time
	until time.Time
}

const (
	// keepFactor bounds the share of one CPU that walks take to a tenth.
	keepFactor = 10
	// maxKept bounds the kinds of callers whose sums are kept.
	maxKept = 64
)

func newRackCache() *rackCache { return &rackCache{kept: map[[sha256.Size]byte]rackSums{}} }

// get returns sums that are kept, or makes them with walk.
func (c *rackCache) get(seen string, now func() time.Time, walk func() ([]rack, error)) (rackSums, error) {
	key := sha256.Sum256([]byte(seen))
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
		sums := rackSums{racks: racks, at: end, until: end.Add(min(time.Minute, keepFactor*end.Sub(start)))}
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.kept) >= maxKept {
			clear(c.kept)
		}
		c.kept[key] = sums
		return sums, nil
	})
	if err != nil {
		return rackSums{}, err
	}
	return v.(rackSums), nil
}

// walkBoxes calls visit with all boxes, a thousand at a time.
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

// sumRacks walks a large pool and keeps numbers only.
func sumRacks(ctx context.Context, api dxpuv1connect.PoolServiceClient) ([]rack, error) {
	at := map[string]*rack{}
	err := walkBoxes(ctx, api, func(boxes []*dxpuv1.Box) {
		for _, r := range byRack(boxes, false) {
			if old := at[r.Name]; old != nil {
				old.Counts.add(r.Counts)
				old.ids = append(old.ids, r.ids...)
				old.Silent += r.Silent
				continue
			}
			at[r.Name] = &r
		}
	})
	return sortedRacks(at), err
}
