//go:build linux

package agent

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"

	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
	"github.com/dxpu-project/dxpu/share"
)

// count returns the number of GPUs that are asked for.
func (p *Part) count() int { return max(len(p.GPUs), p.Count, 1) }

// check checks the number of GPUs of a request for a share, before anything is made of them.
func (p *Part) check(gpus int) error {
	switch n := p.count(); {
	case p.Count < 0 || n > wire.MaxGPUs:
		return fmt.Errorf("%d GPUs: want 1 to %d", n, wire.MaxGPUs)
	case len(p.GPUs) > 0 && p.Count > 0 && len(p.GPUs) != p.Count:
		return fmt.Errorf("%d GPUs are named, not %d", len(p.GPUs), p.Count)
	case n > gpus:
		return fmt.Errorf("%d GPUs: the agent has %d", n, gpus)
	case len(p.Sizes) > 0 && len(p.Sizes) != n:
		return fmt.Errorf("%d sizes for %d GPUs", len(p.Sizes), n)
	}
	return nil
}

// size returns what is asked of the GPU with an index.
func (p *Part) size(i int) Size {
	if len(p.Sizes) > 0 {
		return p.Sizes[i]
	}
	return Size{p.Memory, p.Compute, p.Limit}
}

// apply brings a size into a record, which keeps what the size does not have.
func (z Size) apply(r *RecordPart) {
	if z.Memory > 0 {
		r.Memory = z.Memory
	}
	if z.Compute != nil {
		r.Compute = share.PPM(*z.Compute)
		r.Limit = r.Compute
	}
	if z.Limit != nil {
		r.Limit = share.PPM(*z.Limit)
	}
}

// chooseLocked gives a new record the GPUs that a request names, or those with the most room.
func (a *Agent) chooseLocked(r *Record, part *Part) {
	for i := range part.count() {
		var p RecordPart
		part.size(i).apply(&p)
		if len(part.GPUs) > 0 {
			p.GPU = part.GPUs[i]
		} else {
			p.GPU = a.widestLocked(r, p.Compute)
		}
		r.Parts = append(r.Parts, p)
	}
}

// widestLocked returns the GPU with the most memory left, of those in service that a record
// does not have, and first of those with the compute.
func (a *Agent) widestLocked(r *Record, compute share.PPM) string {
	gpus := a.config.Broker.GPUs
	var all []int
	for i := range gpus {
		if r.part(gpus[i].Name) == nil {
			all = append(all, i)
		}
	}
	fits := func(i int) int {
		if _, left := a.broker.Left(i); a.broker.Stopped(i) == "" && left >= compute {
			return 0
		}
		return 1
	}
	return gpus[slices.MinFunc(all, func(i, j int) int {
		mi, _ := a.broker.Left(i)
		mj, _ := a.broker.Left(j)
		return cmp.Or(cmp.Compare(fits(i), fits(j)), cmp.Compare(mj, mi), cmp.Compare(i, j))
	})].Name
}

// sizesLocked returns the parts of a share that a request resizes, and the share's new record.
func (a *Agent) sizesLocked(s *served, part *Part) (parts []broker.Part, next Record, err error) {
	names := part.GPUs
	if len(names) == 0 {
		for i := range s.record.Parts {
			names = append(names, s.record.Parts[i].GPU)
		}
	}
	next = s.record
	if len(part.Sizes) > 0 && len(part.Sizes) != len(names) {
		return nil, next, fmt.Errorf("%d sizes for %d GPUs", len(part.Sizes), len(names))
	}
	for i, name := range names {
		p := next.part(name)
		if p == nil {
			return nil, next, fmt.Errorf("share %q has no part of GPU %q", s.record.ID, name)
		}
		size := *p
		part.size(i).apply(&size)
		q, err := size.of(a.config.Broker.GPUs)
		if err != nil {
			return nil, next, err
		}
		if part.size(i).Memory == 0 { // it stays, even if the GPU has less than the record
			q.Memory = a.broker.Memory(s.record.ID, q.GPU)
		}
		parts, next = append(parts, q), next.withPart(size)
	}
	return parts, next, nil
}

// promise writes down the room that a resize is to give. The programs of a share know of
// more memory only when the next agent does, too. sizes runs under the agent's lock.
func (a *Agent) promise(sizes func() (*served, []broker.Part, error)) error {
	a.enter()
	s, parts, err := sizes()
	grows := false
	if err == nil {
		grows, err = a.broker.Promise(s.record.ID, parts...)
	}
	a.mu.Unlock()
	if err != nil || !grows {
		return err
	}
	if err := a.store(); err != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.broker.Withhold(s.record.ID)
		return fmt.Errorf("the share is not resized, because the state is not written: %w", err)
	}
	return nil
}

// resize carries out a request for another size of a share.
func (a *Agent) resize(r *http.Request) (any, error) {
	part, p, err := asked(r)
	if err != nil {
		return nil, err
	}
	a.resizing.Lock()
	defer a.resizing.Unlock()
	if err := a.promise(func() (*served, []broker.Part, error) {
		s, err := a.ownLocked(r.PathValue("id"), p)
		if err == nil {
			err = a.leasedLocked(s)
		}
		if err != nil {
			return nil, nil, err
		}
		parts, _, err := a.sizesLocked(s, &part)
		return s, parts, err
	}); err != nil {
		return nil, err
	}
	var out Share
	err = a.change(r, func(s *served) error {
		parts, next, err := a.sizesLocked(s, &part)
		if err == nil {
			err = a.broker.Resize(a.now(), s.record.ID, parts...)
		}
		if err != nil {
			a.broker.Withhold(s.record.ID)
			return err
		}
		s.record = next
		a.resizeClientLocked(s)
		out, err = a.oneLocked(s.record.ID) // before it ends for its new size
		return err
	})
	return out, err
}
