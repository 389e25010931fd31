package soak

// place says where the two ends of a slot of the host are, and what is there.
type place struct {
	on, at int // virtual switch of the host (0: embedded host, 1: VM), and slot there
	box    int // side
	in     int // slot of the box
	server bool
}

// Of four consecutive slots of a switch, two are GPUs of the near box, one is a GPU of
// the far box and one a device server behind it. So each switch has GPUs that
// reach each other inside a box and GPUs that reach each other through the host.
const layoutPeriod = 4

// places returns the places of n slots; half of them are slots of the embedded host.
func places(n int) []place {
	var used [sides]int
	out := make([]place, n)
	for slot := range out {
		p := &out[slot]
		p.at = slot
		if slot >= n/2 {
			p.on, p.at = 1, slot-n/2
		}
		p.box = nearBox
		if p.at%layoutPeriod >= layoutPeriod/2 {
			p.box = farBox
		}
		p.in = used[p.box]
		used[p.box]++
		p.server = p.at%layoutPeriod == layoutPeriod-1
	}
	return out
}
