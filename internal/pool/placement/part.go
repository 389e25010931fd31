package placement

import (
	"fmt"
	"math"
	"strings"
)

// A part is a share of the memory and of the multiprocessors of one GPU. Each part has a
// slot of its own in the box, below that of its GPU, such as a virtual function. A
// request for a part gets room on a GPU that parts share already, or opens a free GPU:
// what fragments the pool least (fragment.go).

// Whole is the compute of a whole GPU, in thousandths.
const Whole = 1000

// ShareMode is how the parts of a GPU share its multiprocessors.
type ShareMode uint8

// Modes of sharing.
const (
	AnyShare ShareMode = iota
	Space
	Time
	Partition
)

// String returns the mode as in "shared in space".
func (m ShareMode) String() string {
	return [...]string{"any mode", "space", "time", "partitions"}[min(m, Partition)]
}

// ShareModes is a set of modes.
type ShareModes uint8

// NewShareModes returns a set of modes. Unknown ones are left out.
func NewShareModes(modes ...ShareMode) (s ShareModes) {
	for _, m := range modes {
		if m > AnyShare && m <= Partition {
			s |= 1 << m
		}
	}
	return s
}

// has reports whether a GPU with these modes can be shared in a mode.
func (s ShareModes) has(m ShareMode) bool {
	if m == AnyShare {
		return s != 0
	}
	return s&(1<<m) != 0
}

// List returns the modes of the set.
func (s ShareModes) List() (out []ShareMode) {
	for m := Space; m <= Partition; m++ {
		if s.has(m) {
			out = append(out, m)
		}
	}
	return out
}

// Part is what a lease has, or asks for, of a GPU.
type Part struct {
	Memory  uint64 // bytes
	Compute uint32 // thousandths, 1 to Whole
	Share   ShareMode
	PartRules
}

// PartRules says which parts may be on one GPU. The labels are those of one tenant: other
// tenants may use the same ones. Empty: no rule.
type PartRules struct {
	Tenant       string
	Affinity     string // parts with the same one are on the same GPU
	AntiAffinity string // parts with the same one are never on the same GPU
	Exclusion    string // the GPU has parts with the same one only, and none of other tenants
	Workload     string // the program, for its interference with others
}

// partLabel is a label of a tenant; the zero value: none.
type partLabel struct{ tenant, label string }

func (r *PartRules) label(l string) partLabel {
	if l == "" {
		return partLabel{}
	}
	return partLabel{r.Tenant, l}
}

// Size returns the larger one of the part's shares of a GPU with some memory, in
// thousandths, rounded up.
func (p *Part) Size(memory uint64) uint32 {
	return max(p.Compute, permilleUp(p.Memory, memory))
}

// permille returns what part of all some bytes are, in thousandths, rounded down.
func permille(n, all uint64) uint32 {
	if all == 0 {
		return 0
	}
	if n >= all {
		return Whole
	}
	return uint32(float64(n) / float64(all) * Whole)
}

// leastBytes returns the least number of bytes that are some thousandths of all, by permille.
func leastBytes(thousandths uint32, all uint64) uint64 {
	if thousandths == 0 {
		return 0
	}
	if all == 0 || thousandths > Whole {
		return math.MaxUint64
	}
	n := uint64(float64(thousandths) / Whole * float64(all)) // within rounding
	for n > 0 && permille(n-1, all) >= thousandths {
		n--
	}
	for permille(n, all) < thousandths {
		n++
	}
	return n
}

// permilleUp is permille rounded up.
func permilleUp(n, all uint64) uint32 {
	if all == 0 || n >= all {
		return Whole
	}
	down := permille(n, all)
	if float64(down)*float64(all) < float64(n)*Whole {
		down++
	}
	return min(down, Whole)
}

// leastGPU returns the least memory of a GPU on which a part has a size of at most some
// thousandths, in bytes; more than any GPU has if there is none.
func (p *Part) leastGPU(size uint64) uint64 {
	switch {
	case size >= Whole:
		return 0
	case size == 0 || uint64(p.Compute) > size || p.Memory > math.MaxUint64/Whole:
		return math.MaxUint64
	}
	n := (p.Memory*Whole + size - 1) / size
	for n > 1 && uint64(p.Size(n-1)) <= size { // within rounding
		n--
	}
	for uint64(p.Size(n)) > size {
		n++
	}
	return n
}

// PartSlot is a slot of a box for a part of one of its GPUs, or a part in it.
type PartSlot struct {
	Slot   uint32
	GPU    uint32 // the slot of the GPU
	Usable bool   // healthy and not cordoned
	// Taken is set while a binding holds or awaits the slot; Part is that of the binding.
	Taken bool
	Part  Part
	// Awaited is set while the part has nothing yet: it waits for bindings that still
	// have its room. Those are Leaving. Promise names the part that is awaited, in both.
	Awaited, Leaving bool
	Promise          string
}

// room is what is left of a GPU.
type room struct {
	memory  uint64 // bytes
	compute uint32 // thousandths
}

func (r room) fits(p *Part) bool { return r.memory >= p.Memory && r.compute >= p.Compute }

func (r room) less(p *Part) room { return room{r.memory - p.Memory, r.compute - p.Compute} }

// taken is what some parts take of a GPU. Memory cannot overflow: the parts of a GPU never
// have more than the largest memory that its box has reported.
type taken struct{ memory, compute uint64 }

func (t *taken) add(p *Part) { t.memory, t.compute = t.memory+p.Memory, t.compute+uint64(p.Compute) }

// promised is what an awaited part takes, and the leaving ones for which it waits.
type promised struct{ later, now taken }

// roomOf returns what the parts of a GPU leave. Room that is promised to an awaited part
// counts once: the awaited part begins after the last of those that leave for it. Each
// promise counts with the larger one of the two, since any of them may be kept first.
func roomOf(g *GPU, parts []PartSlot) room {
	var all taken
	var promises map[string]promised
	for i := range parts {
		s := &parts[i]
		if !s.Taken || s.GPU != g.Slot {
			continue
		}
		if !s.Awaited && !s.Leaving {
			all.add(&s.Part)
			continue
		}
		if promises == nil {
			promises = map[string]promised{}
		}
		p := promises[s.Promise]
		if s.Awaited {
			p.later.add(&s.Part)
		} else {
			p.now.add(&s.Part)
		}
		promises[s.Promise] = p
	}
	for _, p := range promises {
		all.memory += max(p.now.memory, p.later.memory)
		all.compute += max(p.now.compute, p.later.compute)
	}
	return room{g.Memory - min(all.memory, g.Memory), uint32(Whole - min(all.compute, Whole))}
}

// Room returns what the parts of a GPU of the pool leave: memory in bytes, compute in
// thousandths, and the number of slots for more parts.
func Room(b *Box, gpu uint32) (memory uint64, compute uint32, slots int) {
	memory, compute = RoomBesideSlots(b, gpu)
	return memory, compute, len(freePartSlots(b, gpu))
}

// Left is what the parts of a GPU leave.
type Left struct {
	Memory  uint64 // bytes
	Compute uint32 // thousandths
	Slots   int    // for more parts
}

// Rooms returns what the parts of each GPU of a box leave, as Room does for one. Its time is linear
// in the slots of the box.
func Rooms(b *Box) map[uint32]Left {
	parts, taken := map[uint32][]PartSlot{}, takenSlots(b)
	for i := range b.Parts {
		s := &b.Parts[i]
		parts[s.GPU] = append(parts[s.GPU], *s)
	}
	out := make(map[uint32]Left, len(b.GPUs))
	for i := range b.GPUs {
		g := &b.GPUs[i]
		of := parts[g.Slot]
		r := roomOf(g, of)
		left := Left{Memory: r.memory, Compute: r.compute}
		for j := range of {
			if of[j].Usable && !taken[of[j].Slot] {
				left.Slots++
			}
		}
		out[g.Slot] = left
	}
	return out
}

// RoomBesideSlots is Room without the slots, which take longer to count.
func RoomBesideSlots(b *Box, gpu uint32) (memory uint64, compute uint32) {
	for i := range b.GPUs {
		if g := &b.GPUs[i]; g.Slot == gpu {
			r := roomOf(g, b.Parts)
			return r.memory, r.compute
		}
	}
	return 0, 0
}

// freePartSlots returns the slots for more parts of a GPU, in order.
func freePartSlots(b *Box, gpu uint32) (out []uint32) {
	taken := takenSlots(b)
	for i := range b.Parts {
		if s := &b.Parts[i]; s.GPU == gpu && s.Usable && !taken[s.Slot] {
			out = append(out, s.Slot)
		}
	}
	return out
}

// takenSlots returns the slots of a box that have a part.
func takenSlots(b *Box) map[uint32]bool {
	taken := map[uint32]bool{}
	for i := range b.Parts {
		if b.Parts[i].Taken {
			taken[b.Parts[i].Slot] = true
		}
	}
	return taken
}

// String returns the part as "16 GiB and 30 % of the compute".
func (p *Part) String() string {
	return fmt.Sprintf("%s and %s of the compute", bytesText(p.Memory), percent(p.Compute))
}

func percent(thousandths uint32) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(thousandths)/10), ".0") + " %"
}

func bytesText(n uint64) string {
	for _, u := range []struct {
		name string
		size uint64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.size {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(n)/float64(u.size)), ".0") + " " + u.name
		}
	}
	return fmt.Sprintf("%d bytes", n)
}
