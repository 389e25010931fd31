package network

import "time"

// member is a host or a box: its proxy, its link to the switch, and the port of the
// switch before it.
type member struct {
	proxy *proxy
	out   []*wire // of each path
	port  []*wire
	rack  int
	alone bool // all that it receives comes from one member
}

// rack has a link to the other racks in each direction and path.
type rack struct{ up, down []*wire }

// build makes the network and the flows.
func (m *simulation) build() {
	racks := make([]rack, m.Racks)
	for i := range racks {
		racks[i] = rack{m.paths(m.Uplink, m.Buffer, m.Mark), m.paths(m.Uplink, m.Buffer, m.Mark)}
	}
	hosts, boxes := make([]member, m.Hosts), make([]member, m.Boxes)
	for i := range hosts {
		hosts[i] = m.member(i, m.HostLink, m.Boxes)
	}
	for i := range boxes {
		boxes[i] = m.member(i, m.BoxLink, m.Hosts)
	}
	rootOf := m.roots()
	m.gpus = make([]gpu, m.GPUs)
	type links struct{ in, out *wire }
	gpuLinks := make([]links, m.GPUs)
	for i := range gpuLinks {
		gpuLinks[i] = links{m.wire(m.GPULink, 0, 0), m.wire(m.GPULink, 0, 0)}
		gpuLinks[i].in.payload, gpuLinks[i].out.payload = true, true
	}
	ofHost := make([]int, m.Hosts) // GPUs
	for i := range m.gpus {
		ofHost[i*m.Hosts/m.GPUs]++
	}
	for i := range m.gpus {
		g := &m.gpus[i]
		g.number = i
		host, box := &hosts[i*m.Hosts/m.GPUs], &boxes[i%m.Boxes]
		in, out := m.In+part(m.SharedIn, ofHost[i*m.Hosts/m.GPUs]), m.Out+part(m.SharedOut, ofHost[i*m.Hosts/m.GPUs])
		if in > 0 {
			g.in = m.flow(g, i, in, func(path int) []hop { return m.read(racks, path, box, host, gpuLinks[i].in) })
			g.in.bound, g.in.request, g.in.base = float64(m.Window()), m.Header, m.RTT()
			g.in.payload = min(m.TLPs*min(int(m.MRRS), m.MPS), int(m.Window()))
			g.in.window, g.in.slow = g.in.bound, false // the link's window is open
		}
		if out == 0 || m.OneWay && i%2 == 1 {
			continue
		}
		to := (i + 1) % m.GPUs
		route := func(path int) []hop { return m.write(racks, path, box, host, gpuLinks[i].out) }
		base := m.Memory/2 + m.Wire + 2*m.Conversion
		switch next := &boxes[to%m.Boxes]; {
		case m.Peer && next == box:
			route, base = func(int) []hop {
				return []hop{{stage: stage{wire: gpuLinks[i].out}}, {stage: stage{wire: gpuLinks[to].in}}}
			}, m.Memory
		case m.Peer:
			write := route
			route, base = func(path int) []hop {
				var r []hop
				if m.RootWrite > 0 {
					first, second := rootOf(i*m.Hosts/m.GPUs, i%m.Boxes), rootOf(i*m.Hosts/m.GPUs, to%m.Boxes)
					r = append([]hop{{stage: stage{wire: gpuLinks[i].out}}}, m.crossing(racks, path, box, &first.member)...)
					r = append(r, hop{stage: stage{wire: second.write}})
					r = append(r, m.crossing(racks, path, &second.member, next)...)
				} else {
					r = write(path)
					r = append(r[:len(r)-1], m.crossing(racks, path, host, next)...)
				}
				return append(r, hop{stage: stage{wire: gpuLinks[to].in}, inline: true})
			}, m.Memory+2*(m.Wire+2*m.Conversion)
		}
		g.out = m.flow(g, i, out, route)
		g.out.base, g.out.ackTime = base, m.Wire/2
	}
}

// part returns the bytes that each of n GPUs copies so that they copy size together.
func part(size, n int) int { return (size + n - 1) / n }

// root is a host's proxy for one box, and the root complex before it.
type root struct {
	member
	write *wire
}

// roots returns a function that gives each host a proxy for each box that needs one.
func (m *simulation) roots() func(host, box int) *root {
	type place struct{ host, box int }
	made := map[place]*root{}
	return func(host, box int) *root {
		r := made[place{host, box}]
		if r == nil {
			r = &root{m.member(host, m.HostLink, 2), m.wire(m.RootWrite, 0, 0)}
			r.write.payload = true
			made[place{host, box}] = r
		}
		return r
	}
}

// flow makes the flow of GPU i, with its route on each path.
func (m *simulation) flow(g *gpu, i, size int, route func(path int) []hop) *flow {
	payload := m.TLPs * m.MPS
	f := &flow{
		gpu: g, size: size, path: uint8(i % m.Paths), payload: payload, header: m.Header,
		bound: maxWindow, window: float64(initialWindow * payload), slow: true,
	}
	for path := range m.Paths {
		f.routes = append(f.routes, route(path))
	}
	return f
}

// paths makes a link of each path, with equal parts of a rate.
func (m *simulation) paths(rate float64, buffer, mark int) []*wire {
	var out []*wire
	for range m.Paths {
		out = append(out, m.wire(rate/float64(m.Paths), buffer, mark))
	}
	return out
}

func (m *simulation) wire(rate float64, buffer, mark int) *wire {
	w := &wire{rate: rate / float64(time.Second), buffer: float64(buffer), mark: float64(mark)}
	m.wires = append(m.wires, w)
	return w
}

func (m *simulation) member(i int, rate float64, senders int) member {
	x := member{
		proxy: &proxy{conversion: m.Conversion}, out: m.paths(rate, 0, 0), port: m.paths(rate, m.Buffer, m.Mark),
		rack: i % m.Racks, alone: senders == 1 && m.Racks == 1 && !m.Peer,
	}
	if m.InProcess > 0 {
		x.proxy.free = make([]time.Duration, m.InProcess)
	}
	return x
}

// read is the route of a read of host memory.
func (m *simulation) read(racks []rack, path int, box, host *member, link *wire) []hop {
	r := m.crossing(racks, path, box, host)
	r = append(r, hop{stage: stage{delay: m.Memory}, inline: true, answer: true})
	r = append(r, m.crossing(racks, path, host, box)...)
	return append(r, hop{stage: stage{wire: link}, inline: true})
}

// write is the route of a write to host memory.
func (m *simulation) write(racks []rack, path int, box, host *member, link *wire) []hop {
	r := append([]hop{{stage: stage{wire: link}}}, m.crossing(racks, path, box, host)...)
	return append(r, hop{stage: stage{delay: m.Memory / 2}, inline: true})
}

// crossing is the route through two proxies and the network between them.
func (m *simulation) crossing(racks []rack, path int, from, to *member) []hop {
	out, port := from.out[path], to.port[path]
	r := []hop{{stage: stage{proxy: from.proxy}}, {stage: stage{wire: out}, inline: true}, {stage: stage{delay: m.Wire / 2}, inline: true, network: true}}
	if from.rack != to.rack {
		up, down := racks[from.rack].up[path], racks[to.rack].down[path]
		r = append(r, hop{stage: stage{wire: up}}, hop{stage: stage{wire: down}})
	}
	return append(r, hop{stage: stage{wire: port}, inline: to.alone}, hop{stage: stage{proxy: to.proxy}})
}
