package broker

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/wire"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/share"
)

// Part is what a share has of one GPU.
type Part struct {
	GPU     int       // index in Config.GPUs
	Compute share.PPM // that it is to get
	Limit   share.PPM // highest; 0 means all
	Memory  int64     // bytes
	Kept    int64     // memory that a former agent kept for it, if that is more; for Create
	Gone    bool      // the share had it, and its place is kept; for Create
}

// Dropped is a GPU that a share has no more.
type Dropped struct {
	ID  string // of the share
	GPU int
}

// part is a Part with its state.
//
//	                 Drop             the last process that used it has ended
//	(none) --> ready ----> leaving -------------------------------------------> gone
//	             ^                                                               |
//	             +------------------- Add of the same GPU -----------------------+
//
// A part that is gone keeps its place, because processes know a GPU by its place in the page.
type part struct {
	Part
	used     uint64 // ≤ reserved
	reserved uint64 // ≥ limit
	kept     uint64 // least of reserved, until Settle
	promised uint64 // least of reserved, until Resize
	absent   uint64 // that processes which have not come back may use
	state    wire.Gate
	window   uint32
	leaving  bool
	gone     bool
}

// gonePart keeps the place of a GPU that a share has no more.
func gonePart(gpu int) part {
	return part{Part: Part{GPU: gpu}, gone: true, state: wire.Held, window: 1}
}

// limit returns how much memory processes may have in all.
func (q *part) limit() uint64 {
	if q.leaving || q.gone {
		return 0
	}
	return uint64(q.Memory)
}

// check checks what the agent's users gave.
func (s *Spec) check(gpus int) error {
	switch {
	case s.ID == "" || len(s.ID) > 63:
		return fmt.Errorf("name of %d bytes: want 1 to 63", len(s.ID))
	case len(s.Parts) == 0 || len(s.Parts) > wire.MaxGPUs:
		return fmt.Errorf("%d GPUs: want 1 to %d", len(s.Parts), wire.MaxGPUs)
	}
	for i := range len(s.ID) {
		if c := s.ID[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && (c != '-' || i == 0) {
			return fmt.Errorf("name %q: want small letters, digits and dashes", s.ID)
		}
	}
	for i := range s.Parts {
		p := &s.Parts[i]
		if p.GPU < 0 || p.GPU >= gpus || slices.ContainsFunc(s.Parts[:i], func(o Part) bool { return o.GPU == p.GPU }) {
			return fmt.Errorf("GPU %d is not there, or twice", p.GPU)
		}
		if p.Gone {
			continue
		}
		if err := p.check(); err != nil {
			return err
		}
	}
	if !slices.ContainsFunc(s.Parts, func(p Part) bool { return !p.Gone }) {
		return errors.New("the share has no GPU any more")
	}
	return nil
}

func (p *Part) check() error {
	switch {
	case p.Memory <= 0 || p.Memory > wire.MaxBytes:
		return fmt.Errorf("%d bytes of memory: want 1 byte to 1 PiB", p.Memory)
	case p.Compute < 0 || p.Compute > share.Whole || p.Limit < 0 || p.Limit > share.Whole:
		return errors.New("compute: want 0 to 100 %")
	case p.Limit > 0 && p.Compute > p.Limit:
		return errors.New("the compute is above its limit")
	}
	return nil
}

func (p *Part) client(c share.Class) share.ClientSpec {
	return share.ClientSpec{Class: c, Request: p.Compute, Limit: p.Limit, Memory: p.Memory}
}

// room checks that a GPU has room for a part, beside the other shares.
func (b *Broker) room(p *Part, self *room, reserve uint64) error {
	g := &b.config.GPUs[p.GPU]
	memory, compute := b.left(p.GPU, self)
	switch {
	case reserve > memory:
		return fmt.Errorf("GPU %s has %s of memory left, not %s", g.Name, bytesText(memory), bytesText(reserve))
	case p.Compute > compute:
		return fmt.Errorf("GPU %s has %.1f %% of its compute left, not %.1f %%", g.Name, percent(compute), percent(p.Compute))
	}
	return nil
}

// Left returns the memory in bytes and the compute of a GPU that no share has.
func (b *Broker) Left(gpu int) (memory int64, compute share.PPM) {
	m, c := b.left(gpu, nil)
	return int64(m), c
}

// MemoryOf returns the bytes of a GPU that its shares use, and those that they were given.
func (b *Broker) MemoryOf(gpu int) (used, given int64) {
	for _, r := range b.shares {
		if i := r.index(gpu); i >= 0 && !r.parts[i].gone {
			used += int64(r.parts[i].used)
			given += r.parts[i].Memory
		}
	}
	return used, given
}

// Memory returns the bytes that a share has of a GPU now, 0 without a part of it.
func (b *Broker) Memory(id string, gpu int) int64 {
	if r := b.find(id); r != nil {
		if i := r.index(gpu); i >= 0 {
			return r.parts[i].Memory
		}
	}
	return 0
}

func (b *Broker) left(gpu int, without *room) (memory uint64, compute share.PPM) {
	memory = uint64(b.config.GPUs[gpu].Device.Memory) * uint64(b.config.OverCommit) / 100 // below 2^60
	compute = share.Whole
	for _, r := range b.shares {
		for i := range r.parts {
			if q := &r.parts[i]; r != without && q.GPU == gpu && !q.gone {
				memory -= q.reserved
				compute -= q.Compute
			}
		}
	}
	return memory, compute
}

// bytesText returns a number of bytes, with a unit where it is a multiple of one.
func bytesText(n uint64) string {
	for _, u := range []struct {
		name string
		size uint64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.size && n%u.size == 0 {
			return fmt.Sprintf("%d %s", n/u.size, u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

func percent(p share.PPM) float64 { return float64(p) * 100 / float64(share.Whole) }

// Create adds a share. It fails if a GPU or its policy has no room for it.
func (b *Broker) Create(now time.Duration, s Spec) error {
	if err := s.check(len(b.config.GPUs)); err != nil {
		return err
	}
	if b.find(s.ID) != nil {
		return fmt.Errorf("there is a share %q already", s.ID)
	}
	b.next++
	r := &room{id: s.ID, class: s.Class, client: b.next, dirty: true, killAt: machine.Never}
	for _, p := range s.Parts {
		if p.Gone {
			r.parts = append(r.parts, gonePart(p.GPU))
			continue
		}
		q, err := b.join(now, r, p)
		if err != nil {
			for i := range r.parts {
				b.gates[r.parts[i].GPU].Leave(now, r.client)
			}
			return err
		}
		r.parts = append(r.parts, q)
	}
	b.shares = append(b.shares, r)
	b.refresh()
	return nil
}

// join makes a part of a GPU for a share that has none of it.
func (b *Broker) join(now time.Duration, r *room, p Part) (part, error) {
	q := part{Part: p, kept: uint64(min(max(p.Kept, 0), wire.MaxBytes)), window: 1}
	q.reserved = max(uint64(p.Memory), q.kept)
	err := b.inService(p.GPU)
	if err == nil {
		err = b.room(&p, nil, q.reserved)
	}
	if err == nil {
		err = b.gates[p.GPU].Join(now, r.client, p.client(r.class))
	}
	if err == nil {
		b.gates[p.GPU].Hold(now, r.client, r.held)
	}
	return q, err
}

// Add gives a share a part of one more GPU. Processes that are there see it in their page;
// most programs use it after a new start only.
func (b *Broker) Add(now time.Duration, id string, p Part) error {
	r := b.find(id)
	if r == nil {
		return missing(id)
	}
	at := r.index(p.GPU)
	switch {
	case p.GPU < 0 || p.GPU >= len(b.config.GPUs):
		return fmt.Errorf("GPU %d is not there", p.GPU)
	case r.leaves:
		return errors.New("the share ends")
	case r.has(p.GPU):
		return fmt.Errorf("the share has a part of GPU %s already", b.config.GPUs[p.GPU].Name)
	case at < 0 && len(r.parts) == wire.MaxGPUs:
		return fmt.Errorf("the share has %d GPUs already", wire.MaxGPUs)
	}
	if err := p.check(); err != nil {
		return err
	}
	q, err := b.join(now, r, p)
	if err != nil {
		return err
	}
	if at < 0 {
		at = len(r.parts)
		r.parts = append(r.parts, part{})
		for _, m := range r.members {
			m.held = append(m.held, holding{known: true})
		}
	}
	r.parts[at] = q
	for _, m := range r.members {
		if m.greeted && m.connected && b.gates[p.GPU].Enter(now, r.client, m.id) != nil {
			b.reject(m, wire.TooMany)
		}
	}
	r.dirty = true
	b.refresh()
	return nil
}

// Drop takes a GPU from a share. The processes that have used it are asked to end, and
// killed after the grace; the others go on. Without its last GPU a share ends.
func (b *Broker) Drop(now time.Duration, id string, gpu int, grace time.Duration) error {
	r := b.find(id)
	if r == nil {
		return missing(id)
	}
	if !r.has(gpu) {
		return fmt.Errorf("share %q has no part of this GPU", id)
	}
	at := r.index(gpu)
	if !slices.ContainsFunc(r.parts, func(q part) bool { return q.GPU != gpu && !q.leaving && !q.gone }) {
		return b.End(now, id, grace)
	}
	r.parts[at].leaving, r.dirty = true, true
	b.expel(now, r, at, grace)
	b.depart(now, r)
	b.refresh()
	return nil
}

// expel asks the processes that have used a part to end. It reports whether there are any.
func (b *Broker) expel(now time.Duration, r *room, at int, grace time.Duration) (found bool) {
	for _, m := range r.members {
		if m.held[at].opened {
			b.endProcess(now, m, grace)
			found = true
		}
	}
	return found
}

// depart takes parts away that no process uses any more. Processes that a former agent
// served may.
func (b *Broker) depart(now time.Duration, r *room) {
	for i := range r.parts {
		q := &r.parts[i]
		if !q.leaving || r.restored || slices.ContainsFunc(r.members, func(m *process) bool { return m.held[i].opened }) {
			continue
		}
		for _, m := range r.members {
			b.gates[q.GPU].Exit(now, m.id)
		}
		b.gates[q.GPU].Leave(now, r.client)
		*q = gonePart(q.GPU)
		r.dirty = true
		b.out.Dropped = append(b.out.Dropped, Dropped{r.id, q.GPU})
	}
}

// Promise keeps the room for a resize to come, so that the caller can write it down before
// processes have it. It reports whether a part grows. Resize and Withhold end it.
func (b *Broker) Promise(id string, parts ...Part) (grows bool, err error) {
	r, err := b.resizable(id, parts)
	if err != nil {
		return false, err
	}
	for _, p := range parts {
		at := r.index(p.GPU)
		grows = grows || p.Memory > r.parts[at].Memory
		r.parts[at].promised = uint64(p.Memory)
		r.release(at, 0)
	}
	return grows, nil
}

// Withhold gives the room of a promise back.
func (b *Broker) Withhold(id string) {
	if r := b.find(id); r != nil {
		for i := range r.parts {
			r.parts[i].promised = 0
			r.release(i, 0)
		}
	}
}

// resizable returns a share, unless its parts cannot have a size.
func (b *Broker) resizable(id string, parts []Part) (*room, error) {
	r := b.find(id)
	if r == nil {
		return nil, missing(id)
	}
	for _, p := range parts {
		if err := p.check(); err != nil {
			return nil, err
		}
		if !r.has(p.GPU) || r.parts[r.index(p.GPU)].leaving {
			return nil, fmt.Errorf("share %q has no part of GPU %d", id, p.GPU)
		}
		if err := b.room(&p, r, max(uint64(p.Memory), r.parts[r.index(p.GPU)].used)); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Resize changes the parts of some GPUs of a share, all or none. More than there is room for
// is refused, and less than the share uses takes effect as it frees memory.
func (b *Broker) Resize(now time.Duration, id string, parts ...Part) error {
	r, err := b.resizable(id, parts)
	if err != nil {
		return err
	}
	for i := range parts {
		if b.gates[parts[i].GPU].Resize(now, r.client, parts[i].client(r.class)) {
			continue
		}
		for _, p := range parts[:i] {
			b.gates[p.GPU].Resize(now, r.client, r.parts[r.index(p.GPU)].client(r.class))
		}
		return fmt.Errorf("the policy of GPU %s has no room for this size", b.config.GPUs[parts[i].GPU].Name)
	}
	for _, p := range parts {
		at := r.index(p.GPU)
		r.parts[at].Part, r.parts[at].promised = p, 0
		r.release(at, 0)
	}
	r.dirty = true
	b.refresh()
	return nil
}

// index returns the place of a GPU in the page of a share, -1 if it has none.
func (r *room) index(gpu int) int {
	return slices.IndexFunc(r.parts, func(q part) bool { return q.GPU == gpu })
}

// has reports whether a share has a part of a GPU.
func (r *room) has(gpu int) bool {
	i := r.index(gpu)
	return i >= 0 && !r.parts[i].gone
}

// entry returns what the page says of a part. A limit of zero says that no process may use
// the GPU: it is out of service, or not in the share any more.
func (b *Broker) entry(r *room, q *part) wire.GPU {
	g := &b.config.GPUs[q.GPU]
	e := wire.GPU{
		UUID: g.UUID, Domain: g.Domain, Address: g.Address, Gate: q.state, Window: q.window,
		Limit: q.limit(), Used: q.used + q.absent, Compute: uint32(q.Limit), Credit: uint32(b.gates[q.GPU].Credit(r.client)),
	}
	if q.Limit == 0 {
		e.Compute = uint32(share.Whole)
	}
	if b.stopped[q.GPU] != "" {
		e.Limit = 0
	}
	return e
}
