package placement

// view is the index of the GPUs of one model that have a certain memory: what a
// request for a model with so much memory chooses from.
type view struct {
	model string
	floor uint64 // bytes of memory that each GPU has at least; 0: all of the model
	used  uint64 // when a request was last decided with it
	// byBox has the free GPUs of a box together, by the box's kind; byDomain
	// those of an NVLink domain of an NVLink box; loose those of an NVLink box
	// without a domain.
	byBox           [kinds]shelf
	byDomain, loose shelf
	rows            map[string]row // by box
	usable, free    [kinds]int     // GPUs of it by the box's kind; free are usable
}

// kinds is how many kinds of box there are.
const kinds = int(NVLink) + 1

// row is what a view has of one box.
type row struct {
	kind         Kind
	usable, free int
	groups       []*group // by box
	domains      []*group // by NVLink domain, the one without included
}

func newView(model string, floor uint64) *view {
	return &view{model: model, floor: floor, rows: map[string]row{}}
}

// set puts what a box has now in the place of what it had.
func (v *view) set(b *Box) {
	v.remove(b.ID)
	r := row{kind: b.Kind}
	for i := range b.GPUs {
		g := &b.GPUs[i]
		if !g.Usable || g.Model != v.model || g.Memory < v.floor {
			continue
		}
		r.usable++
		if g.Free {
			r.free++
		}
	}
	if r.usable == 0 {
		return
	}
	if r.free > 0 {
		whole := Request{MinMemory: v.floor}
		r.groups = appendGroups(nil, b, &whole, v.model)
	}
	if r.free > 0 && b.Kind == NVLink {
		joined := Request{MinMemory: v.floor, NVLink: Required}
		r.domains = appendGroups(nil, b, &joined, v.model)
	}
	v.rows[b.ID] = r
	v.count(&r, 1)
	for _, g := range r.groups {
		v.byBox[r.kind].add(g)
	}
	for _, g := range r.domains {
		v.domainShelf(g).add(g)
	}
}

// remove takes a box out.
func (v *view) remove(box string) {
	r, ok := v.rows[box]
	if !ok {
		return
	}
	delete(v.rows, box)
	v.count(&r, -1)
	for _, g := range r.groups {
		v.byBox[r.kind].remove(g)
	}
	for _, g := range r.domains {
		v.domainShelf(g).remove(g)
	}
}

func (v *view) count(r *row, sign int) {
	v.usable[r.kind] += sign * r.usable
	v.free[r.kind] += sign * r.free
}

func (v *view) domainShelf(g *group) *shelf {
	if g.domain == "" {
		return &v.loose
	}
	return &v.byDomain
}

// shelves returns those with groups that the request admits.
func (v *view) shelves(req *Request) []*shelf {
	var out []*shelf
	switch {
	case req.NVLink == Required && !admits(NVLink, req):
	case req.NVLink == Required && req.alone():
		out = append(out, &v.byDomain, &v.loose)
	case req.NVLink == Required:
		out = append(out, &v.byDomain)
	default:
		for k := range v.byBox {
			if admits(Kind(k), req) {
				out = append(out, &v.byBox[k])
			}
		}
	}
	return out
}
