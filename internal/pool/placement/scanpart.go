package placement

// A request whose rules keep it from all GPUs that a search tries (searchpart.go) may still have a
// place. The scan finds it without a question to each GPU: a table has the room of all GPUs side by
// side, and sets of numbers (numbers.go) have the boxes with a label and the GPUs with an
// anti-affinity.

// maxFound bounds the places among which a scan chooses.
const maxFound = 128

// table has the room of the GPUs of a plane.
type table struct {
	rows []tableRow
	free []uint32
}

// tableRow is one GPU.
type tableRow struct {
	memory  uint64
	compute uint32
	box     uint32     // number
	gpu     *sharedGPU // nil: the row is free
}

func (t *table) add(g *sharedGPU) {
	row := tableRow{g.state.memory, g.state.compute, g.box.number, g}
	if last := len(t.free) - 1; last >= 0 {
		g.row, t.free = t.free[last], t.free[:last]
		t.rows[g.row] = row
		return
	}
	g.row, t.rows = uint32(len(t.rows)), append(t.rows, row)
}

func (t *table) remove(g *sharedGPU) {
	t.rows[g.row] = tableRow{}
	t.free = append(t.free, g.row)
}

// scan looks for the GPU of least cost among all, where a search has found none and no GPU is
// free. It chooses among some number of places at most.
func (s *partSearch) scan(most int) {
	boxes, some := s.pool.labels.having(s.req.Labels)
	labels := boxes.bits()
	averse := s.part.label(s.part.AntiAffinity)
	for _, of := range s.admitted() {
		var not []uint64
		if set := of.averse[averse]; set != nil {
			not = set.bits()
		}
		for i := range of.table.rows {
			r := &of.table.rows[i]
			if r.compute < s.part.Compute || r.memory < s.part.Memory || r.gpu == nil || hasBit(not, uint32(i)) || some && !hasBit(labels, r.box) {
				continue
			}
			s.tries++
			if s.consider(r.gpu) {
				if most--; most == 0 {
					return
				}
			}
		}
	}
}
