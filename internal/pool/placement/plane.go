package placement

import (
	"cmp"
	"math/bits"
	"slices"

	"k8s.io/utils/third_party/forked/golang/btree"
)

// plane is the GPUs of one class that parts share and that have room for more, by what is
// left of them. It is divided into cells: the thousandths of compute and of memory that a
// GPU has left. The cell alone tells how much a part adds to the fragmentation of a GPU.
type plane struct {
	gpus   *btree.BTree[spare]
	blocks []*block // with a GPU, by at
	// racks has the GPUs of each rack, table the room of all, and averse the rows of those with an
	// anti-affinity. The plane of a rack has none of these.
	racks  map[string]*plane
	table  table
	averse map[partLabel]*averse
}

// spare is a GPU beside the first of what orders it: the compute that is left, the memory,
// the programs, the rack and the name.
type spare struct {
	compute uint32
	memory  uint64
	*sharedGPU
}

// blockCells is the number of cells of a block by compute, memoryCells that by memory.
const (
	blockCells  = 32
	memoryCells = 64
	inLine      = Whole/memoryCells + 1 // blocks beside each other
)

// block has the cells of some neighbouring thousandths of compute and of memory.
type block struct {
	at   uint32
	rows []row // by compute
}

// row is the cells of a block with some compute that have a GPU.
type row struct {
	compute uint32
	cells   uint64 // a bit for each thousandth of memory
	most    uint64 // bytes of memory that a GPU has left
}

// blockOf returns the block of a cell.
func blockOf(compute, memory uint32) uint32 {
	return compute/blockCells*inLine + memory/memoryCells
}

// origin returns the first cell of the block.
func (b *block) origin() (compute, memory uint32) {
	return b.at / inLine * blockCells, b.at % inLine * memoryCells
}

func (b *block) row(compute uint32) (int, bool) {
	return slices.BinarySearchFunc(b.rows, compute, func(r row, c uint32) int { return cmp.Compare(r.compute, c) })
}

func newPlane() *plane {
	return &plane{gpus: btree.New(treeDegree, func(a, b spare) bool { return a.compare(b) < 0 })}
}

func (a spare) compare(b spare) int {
	if d := cmp.Or(cmp.Compare(a.compute, b.compute), cmp.Compare(a.memory, b.memory)); d != 0 {
		return d
	}
	if d := cmp.Compare(a.state.programs, b.state.programs); d != 0 {
		return d
	}
	return compareShared(a.sharedGPU, b.sharedGPU)
}

func (g *sharedGPU) spare() spare { return spare{g.state.compute, g.state.memory, g} }

// cell returns the thousandths of compute and of memory that are left of a GPU.
func (g *sharedGPU) cell() (compute, memory uint32) {
	return g.state.compute, permille(g.state.memory, g.class.memory)
}

// left returns the sum of the thousandths that are left.
func (g *sharedGPU) left() uint32 {
	compute, memory := g.cell()
	return compute + memory
}

func (p *plane) block(at uint32) (int, bool) {
	return slices.BinarySearchFunc(p.blocks, at, func(b *block, at uint32) int { return cmp.Compare(b.at, at) })
}

// averse is the rows of the GPUs with an anti-affinity.
type averse struct {
	numbers
	n int
}

func (a *averse) len() int {
	if a == nil {
		return 0
	}
	return a.n
}

func (p *plane) add(g *sharedGPU) {
	p.gpus.ReplaceOrInsert(g.spare())
	p.mark(g)
	if p.racks == nil {
		return
	}
	p.table.add(g)
	for _, l := range g.averse {
		if p.averse[l] == nil {
			p.averse[l] = &averse{}
		}
		p.averse[l].set(g.row)
		p.averse[l].n++
	}
	if rack := g.box.Rack; rack != "" {
		if p.racks[rack] == nil {
			p.racks[rack] = newPlane()
		}
		p.racks[rack].add(g)
	}
}

func (p *plane) remove(g *sharedGPU) {
	p.gpus.Delete(g.spare())
	p.unmark(g)
	if p.racks == nil {
		return
	}
	p.table.remove(g)
	for _, l := range g.averse {
		a := p.averse[l]
		a.clear(g.row)
		if a.n--; a.n == 0 {
			delete(p.averse, l)
		}
	}
	if rack := g.box.Rack; rack != "" {
		if p.racks[rack].remove(g); p.racks[rack].gpus.Len() == 0 {
			delete(p.racks, rack)
		}
	}
}

// mark sets the bit of the cell of a GPU.
func (p *plane) mark(g *sharedGPU) {
	compute, memory := g.cell()
	at, ok := p.block(blockOf(compute, memory))
	if !ok {
		p.blocks = slices.Insert(p.blocks, at, &block{at: blockOf(compute, memory)})
	}
	b := p.blocks[at]
	i, ok := b.row(compute)
	if !ok {
		b.rows = slices.Insert(b.rows, i, row{compute: compute})
	}
	r := &b.rows[i]
	r.cells, r.most = r.cells|1<<(memory%memoryCells), max(r.most, g.state.memory)
}

// unmark clears the bit of the cell of a GPU that was removed, unless others are there.
func (p *plane) unmark(g *sharedGPU) {
	compute, memory := g.cell()
	at, _ := p.block(blockOf(compute, memory))
	b := p.blocks[at]
	i, _ := b.row(compute)
	r := &b.rows[i]
	from := spare{compute: compute, memory: leastBytes(memory, g.class.memory), sharedGPU: &sharedGPU{box: &Box{}}}
	if other, ok := p.first(from); !ok || other.compute != compute || permille(other.memory, g.class.memory) != memory {
		r.cells &^= 1 << (memory % memoryCells)
	}
	if r.cells == 0 {
		if b.rows = slices.Delete(b.rows, i, i+1); len(b.rows) == 0 {
			p.blocks = slices.Delete(p.blocks, at, at+1)
		}
		return
	}
	if r.most == g.state.memory {
		_, memory = b.origin()
		from.memory = leastBytes(memory+memoryCells, g.class.memory)
		p.gpus.DescendLessOrEqual(from, func(last spare) bool {
			r.most = last.memory
			return false
		})
	}
}

// first returns the first GPU that is not before some place in the order.
func (p *plane) first(from spare) (found spare, ok bool) {
	p.gpus.AscendGreaterOrEqual(from, func(g spare) bool {
		found, ok = g, true
		return false
	})
	return found, ok
}

// marks are the thousandths of memory at which other typical requests fit, before or
// after a part takes its room.
type marks [inLine]uint64

func (m *marks) add(at uint32) {
	if at <= Whole {
		m[at/memoryCells] |= 1 << (at % memoryCells)
	}
}

// after returns the cells of a word from the first mark after a cell on.
func (m *marks) after(word, cell uint32) uint64 {
	later := m[word] &^ (1<<(cell+1) - 1)
	if later == 0 {
		return 0
	}
	return ^uint64(0) << bits.TrailingZeros64(later)
}
