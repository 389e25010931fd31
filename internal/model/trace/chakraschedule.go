package trace

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// ready is a node whose dependencies have ended.
type ready struct {
	at   time.Duration
	node int32
}

// readyNodes is a heap, the earliest first, of equal ones the first in the file.
type readyNodes []ready

func (r readyNodes) Len() int { return len(r) }
func (r readyNodes) Less(a, b int) bool {
	return cmp.Or(cmp.Compare(r[a].at, r[b].at), cmp.Compare(r[a].node, r[b].node)) < 0
}
func (r readyNodes) Swap(a, b int) { r[a], r[b] = r[b], r[a] }
func (r *readyNodes) Push(v any)   { *r = append(*r, v.(ready)) }
func (r *readyNodes) Pop() any {
	last := (*r)[len(*r)-1]
	*r = (*r)[:len(*r)-1]
	return last
}

// place is a thread of the host or a stream of the GPU, which does one thing at a time.
type place struct {
	host  bool
	queue uint64
}

// chakraTimes is the schedule of a trace, by node.
type chakraTimes struct {
	start, end []time.Duration
	arrive     []time.Duration // of a node of the host: when its thread came to it
	on         []int32         // the node of the other kind that it waited for last, or None
	free       map[place]time.Duration
}

// schedule gives each node a time, because the trace tells only what it depends on and
// how long it takes: as early as the nodes that it depends on, its recorded start, if any,
// and its thread or stream allow. Then it adds the calls and operations.
func (c *chakra) schedule() error {
	if err := c.checkTimes(); err != nil {
		return err
	}
	users, waiting := c.users()
	t := chakraTimes{
		start: make([]time.Duration, len(c.nodes)), end: make([]time.Duration, len(c.nodes)), arrive: make([]time.Duration, len(c.nodes)),
		on: slices.Repeat([]int32{workload.None}, len(c.nodes)), free: map[place]time.Duration{},
	}
	at := make([]time.Duration, len(c.nodes)) // by node: when what it depends on has ended
	var next readyNodes
	for i := range c.nodes {
		at[i] = time.Duration(c.nodes[i].start) * time.Microsecond
		t.arrive[i] = at[i]
		if waiting[i] == 0 {
			next = append(next, ready{at[i], int32(i)})
		}
	}
	heap.Init(&next)
	done := 0
	for ; len(next) > 0; done++ {
		r := heap.Pop(&next).(ready)
		i := r.node
		c.place(&t, i, r.at)
		for _, u := range users.of(i) {
			t.follow(c.nodes, u, i)
			at[u] = max(at[u], t.end[i])
			if waiting[u]--; waiting[u] == 0 {
				heap.Push(&next, ready{at[u], u})
			}
		}
	}
	if done < len(c.nodes) {
		return fmt.Errorf("chakra: %d nodes depend on each other in a circle", len(c.nodes)-done)
	}
	c.emit(&t)
	return nil
}

// checkTimes makes recorded starts relative to the first, and refuses times whose sum is
// absurd.
func (c *chakra) checkTimes() error {
	var first, last, sum uint64
	for i := range c.nodes {
		if s := c.nodes[i].start; s > 0 && (first == 0 || s < first) {
			first = s
		}
	}
	const most = uint64(workload.MaxTime / time.Microsecond)
	for i := range c.nodes {
		n := &c.nodes[i]
		if n.start > 0 {
			n.start -= first
		}
		last = max(last, n.start)
		sum += min(n.micros, most)
		if last > most || sum > most {
			return errors.New("chakra: the nodes take more than a year: a time is wrong")
		}
	}
	return nil
}

// shortest is the time of a node of the host whose time is zero: it was rounded down, and
// calls without a length would count as parts of the next one.
const shortest = 500 * time.Nanosecond

// place puts a node on its thread or stream.
func (c *chakra) place(t *chakraTimes, i int32, ready time.Duration) {
	n := &c.nodes[i]
	where := place{n.host, n.queue()}
	free := t.free[where]
	t.arrive[i] = max(t.arrive[i], free)
	t.start[i] = max(ready, free)
	t.end[i] = t.start[i] + time.Duration(n.micros)*time.Microsecond
	if n.host && n.micros == 0 {
		t.end[i] += shortest
	}
	t.free[where] = t.end[i]
}

// follow notes what node u learns from one that it depends on: a node of the host arrives
// after the others of the host, and both kinds note the last one of the other kind.
func (t *chakraTimes) follow(nodes []chakraNode, u, on int32) {
	if nodes[u].host && nodes[on].host {
		t.arrive[u] = max(t.arrive[u], t.end[on])
	}
	if nodes[u].host != nodes[on].host && (t.on[u] == workload.None || t.end[t.on[u]] <= t.end[on]) {
		t.on[u] = on
	}
}

// csr holds a list of nodes for each node.
type csr struct{ from, nodes []int32 }

func (c *csr) of(i int32) []int32 { return c.nodes[c.from[i]:c.from[i+1]] }

// users returns the nodes that depend on each, and on how many each depends.
func (c *chakra) users() (users csr, waiting []int32) {
	index := make(map[uint64]int32, len(c.nodes))
	repeated := 0
	for i := range c.nodes {
		if _, ok := index[c.nodes[i].id]; ok {
			repeated++
			continue
		}
		index[c.nodes[i].id] = int32(i)
	}
	unknown := 0
	users.from = make([]int32, len(c.nodes)+1)
	waiting = make([]int32, len(c.nodes))
	each := func(f func(on, i int32)) {
		unknown = 0
		for i := range c.nodes {
			for _, id := range c.deps[c.nodes[i].firstDep:c.nodes[i].afterDep] {
				if on, ok := index[id]; ok {
					f(on, int32(i))
				} else {
					unknown++
				}
			}
		}
	}
	each(func(on, i int32) { users.from[on+1]++; waiting[i]++ })
	for i := range c.nodes {
		users.from[i+1] += users.from[i]
	}
	users.nodes = make([]int32, users.from[len(c.nodes)])
	used := slices.Clone(users.from)
	each(func(on, i int32) { users.nodes[used[on]] = i; used[on]++ })
	if repeated > 0 {
		c.b.Report.Doubt("%d nodes have the id of another one", repeated)
	}
	if unknown > 0 {
		c.b.Report.Note("%d dependencies are on nodes that are not in the file", unknown)
	}
	return users, waiting
}

// emit adds operations, the calls that launch them and the calls that wait for them. An
// operator of the host spends equal parts of its time on each launch.
func (c *chakra) emit(t *chakraTimes) {
	c.b.SetScheduled()
	c.b.Report.Note("a Chakra trace has no times of the run, no calls of CUDA and no sizes of copies: the replay starts from a schedule of its nodes, without the host's time between operators and with whole microseconds")
	launches := map[int32][]int32{} // by node of the host
	order := make([]int32, len(c.nodes))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int {
		return cmp.Or(cmp.Compare(t.start[a], t.start[b]), cmp.Compare(a, b))
	})
	for _, i := range order {
		if n := &c.nodes[i]; !n.host && n.kind != typeMetadata && t.on[i] != workload.None {
			launches[t.on[i]] = append(launches[t.on[i]], i)
		}
	}
	corr := make([]uint32, len(c.nodes)) // by node of the GPU: of its launch
	var last uint32
	for _, i := range order {
		n := &c.nodes[i]
		where := func() string { return fmt.Sprintf("node %d", n.id) }
		if !n.host {
			if n.kind != typeMetadata {
				c.operation(t, i, corr[i], where)
			}
			continue
		}
		th, ok := c.b.Thread(workload.Thread{ID: n.queue()})
		if !ok {
			c.b.Report.Drop("on too many threads", where())
			continue
		}
		if on := t.on[i]; on != workload.None && c.nodes[on].kind != typeMetadata {
			last++
			c.wait(t, i, th, last, where)
			t.start[i]++ // the wait takes at least a nanosecond
		}
		ops := launches[i]
		each := (t.end[i] - t.start[i]) / time.Duration(max(len(ops), 1))
		for k, op := range ops {
			last++
			corr[op] = last
			c.b.AddCall(workload.Call{Start: t.start[i] + time.Duration(k)*each, Dur: each, Corr: last, Name: n.name, Thread: th, Kind: workload.Launch}, where)
		}
	}
}

// operation adds an operation of the GPU.
func (c *chakra) operation(t *chakraTimes, i int32, corr uint32, where func() string) {
	n := &c.nodes[i]
	st, ok := c.b.Stream(workload.Stream{ID: n.queue()})
	if !ok {
		c.b.Report.Drop("on too many streams", where())
		return
	}
	op := workload.Op{Start: t.start[i], Dur: t.end[i] - t.start[i], Corr: corr, Name: n.name, Stream: st, Kind: n.op, Group: n.group}
	if n.op.IsCopy() {
		op.Bytes = n.bytes
	}
	c.b.AddOp(op, where)
}

// wait adds the wait of an operator of the host for a stream.
func (c *chakra) wait(t *chakraTimes, i, thread int32, corr uint32, where func() string) {
	n, on := &c.nodes[i], &c.nodes[t.on[i]]
	st, ok := c.b.Stream(workload.Stream{ID: on.queue()})
	if !ok {
		return
	}
	from := min(t.arrive[i], t.start[i])
	c.b.AddCall(workload.Call{Start: from, Dur: t.start[i] + 1 - from, Corr: corr, Name: n.name, Thread: thread, Kind: workload.StreamSync}, where)
	c.b.AddAwaited(workload.Awaited{Corr: corr, Stream: st, From: workload.None})
}
