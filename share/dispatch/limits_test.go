package dispatch_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// crowd is programs at random on one GPU, and what they are to have.
type crowd struct {
	*world
	info    share.Info
	uncut   bool
	rng     *rand.Rand
	present []*program
	next    share.ClientID
}

// tales are what programs may say of their launches; the first one is the truth.
var tales = []share.Kernel{
	{},
	{Blocks: 1, SMs: 1, Expected: 1},
	{Blocks: 1 << 60, SMs: 1 << 30, Expected: 1 << 62},
	{Blocks: -5, SMs: -1, Expected: -time.Hour},
	{Blocks: 1000, SMs: 80, Expected: time.Hour},
}

// any returns a program with a limit: steady, in bursts, silent, of kernels of no length or of ones
// that do not end. It may lie.
func (c *crowd) any(percent int) *program {
	const ms = time.Millisecond
	c.next++
	p := &program{id: c.next, gap: 5 * time.Microsecond, spec: share.ClientSpec{
		Class: share.Class(c.rng.IntN(2)), Request: share.Percent(percent), Limit: share.Percent(percent), Memory: c.bytes(),
	}}
	p.kernel = []time.Duration{300 * time.Microsecond, ms, 3 * ms, 7 * ms, 20 * ms, 60 * ms}[c.rng.IntN(6)]
	switch c.rng.IntN(8) {
	case 0:
		p.kernel, p.gap = 0, 200*time.Microsecond
	case 1:
		p.kernel, p.kill = 24*time.Hour, 5*time.Second
		if !c.uncut && c.info.Execution == share.Contexts { // the others wait until the client is evicted
			p.kernel, p.kill = time.Second, 0
		}
	case 2:
		p.silent = true
	case 3, 4:
		p.kernels = 1 + c.rng.IntN(20)
		p.pause = time.Duration(p.kernels) * p.kernel / 4
	}
	p.tell = tales[c.rng.IntN(len(tales))]
	if p.part = ms; c.uncut {
		p.part = max(p.kernel, 1)
	}
	return p
}

func (c *crowd) bytes() int64 { return int64(1 + c.rng.IntN(int(small.Memory/4))) }

// sum returns the limits and the memory of all programs but one.
func (c *crowd) sum(but *program) (percent int, bytes int64) {
	for _, p := range c.present {
		if p != but {
			percent += int(p.spec.Limit / share.Percent(1))
			bytes += p.spec.Memory
		}
	}
	return percent, bytes
}

// change lets a program come, leave or be resized. The memory is as a sum says, to the byte.
func (c *crowd) change() {
	percent, bytes := c.sum(nil)
	switch n := len(c.present); {
	case n == 0 || n < 6 && percent <= 80 && c.rng.IntN(3) == 0:
		p := c.any(10 + c.rng.IntN(81-percent))
		err := c.join(p)
		c.wantRoom(bytes+p.spec.Memory, err == nil)
		if err == nil {
			c.present = append(c.present, p)
		}
	case c.rng.IntN(3) == 0:
		c.end(c.rng.IntN(n))
	default:
		p := c.present[c.rng.IntN(n)]
		percent, bytes := c.sum(p)
		to, spec := share.Percent(10+c.rng.IntN(81-percent)), p.spec
		spec.Request, spec.Limit, spec.Memory = to, to, c.bytes()
		ok := c.d.Resize(c.now, p.id, spec)
		c.wantRoom(bytes+spec.Memory, ok)
		if ok {
			p.spec = spec
		}
	}
}

func (c *crowd) wantRoom(bytes int64, ok bool) {
	c.t.Helper()
	if c.info.Name != "mig" && ok != (bytes <= small.Memory) { // its profiles may leave no room
		c.t.Fatalf("room for %d of %d bytes: %t", bytes, small.Memory, ok)
	}
}

func (c *crowd) end(i int) {
	c.remove(c.present[i])
	c.present = slices.Delete(c.present, i, i+1)
}

// wants returns the least and the most percent of the GPU that a program may have in ten seconds.
func (c *crowd) wants(p *program) (least, most float64) {
	limit := float64(p.spec.Limit) / float64(share.Percent(1))
	longest := p.kernel.Seconds() * 10
	if p.kill > 0 {
		longest = p.kill.Seconds() * 10
	}
	most = limit*1.03 + longest + 0.5
	long := slices.ContainsFunc(c.present, func(o *program) bool { return o != p && max(o.kernel, o.kill) >= time.Second })
	switch {
	case p.silent || p.kernel == 0:
		return 0, 0
	case p.kill > 0:
		return 0, most
	case p.pause > 0 && (c.uncut || long):
		return limit*0.60 - longest, limit*1.10 + longest + 0.5 // it waits for kernels of others at each burst
	case p.pause > 0:
		return limit*0.68 - longest, limit*1.10 + longest + 0.5
	}
	if long {
		return limit*0.65 - longest, most
	}
	return limit*0.92 - longest, most
}

// waits reports whether a program may wait for others without a bound: the policy prefers online
// ones, or it counts the blocks that programs tell.
func (c *crowd) waits(p *program) bool {
	online := slices.ContainsFunc(c.present, func(o *program) bool { return o.spec.Class == share.Online })
	switch c.info.Name {
	case "mps", "mig", "gemini", "gaiapi", "timeslice", "paella":
		return false
	case "gaia":
		return p.tell.Blocks != 0
	}
	return p.spec.Class == share.Offline && online
}

// check wants the shares of the programs over ten seconds without a change.
func (c *crowd) check() {
	c.run(c.now + 10*time.Second)
	var before []time.Duration
	for _, p := range c.present {
		before = append(before, c.d.Usage(p.id).Service)
		p.ranLaunches = 0
	}
	c.run(c.now + 10*time.Second)
	exact := c.info.Limits && c.info.Name != "gaia" && c.info.Name != "mig"
	var lines []string
	bad := false
	for i, p := range c.present {
		got := (c.d.Usage(p.id).Service - before[i]).Seconds() * 10
		least, most := c.wants(p)
		wrong := exact && (got < least || got > most) || p.ranLaunches == 0 && !p.silent && p.kill == 0 && !c.waits(p)
		bad = bad || wrong
		lines = append(lines, fmt.Sprintf("program %d, %v, kernels of %v, bursts of %d, tells %d blocks: %d launches had %.2f %% of %d %%; wrong: %t",
			p.id, p.spec.Class, p.kernel, p.kernels, p.tell.Blocks, p.ranLaunches, got, p.spec.Limit/share.Percent(1), wrong))
	}
	if bad {
		c.t.Errorf("at %v:\n%s", c.now, strings.Join(lines, "\n"))
	}
	for _, e := range c.evicted {
		i := slices.IndexFunc(c.present, func(p *program) bool { return p.id == e.Client })
		if i < 0 {
			continue
		}
		if c.present[i].kill == 0 {
			c.t.Errorf("%+v, and its kernels end", e)
		}
		c.end(i)
	}
	c.evicted = nil
}

// Whatever programs have slices, come, leave and are resized, whether their launches are cut or
// not: each has its limit and no more with the policies that keep limits, none starves, and the
// account of the memory is exact. A program that lies changes nothing.
func TestLimitsOfAnySlices(t *testing.T) {
	for _, info := range share.Policies() {
		for _, whole := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, uncut %t", info.Name, whole), func(t *testing.T) {
				t.Parallel()
				testCrowd(t, info, whole)
			})
		}
	}
}

func testCrowd(t *testing.T, info share.Info, whole bool) {
	t.Helper()
	c := &crowd{info: info, uncut: whole, rng: rand.New(rand.NewPCG(0, 5)), world: newWorld(t, info.Name)}
	if whole {
		c.world = worldOf(t, uncut(t, share.Device{SMs: 2, ThreadsPerSM: 2048, Memory: small.Memory}, info.Name), nil)
	}
	for range 10 {
		c.change()
		c.run(c.now + time.Duration(c.rng.Int64N(int64(2*time.Second))))
		c.change()
		c.check()
	}
	for len(c.present) > 0 {
		c.end(0)
	}
	c.run(c.now + time.Minute)
	if err := c.d.Join(c.now, 1<<20, share.ClientSpec{Memory: small.Memory}); err != nil {
		t.Errorf("memory is leaked: %v", err)
	}
	if n := c.d.Violations(); n != 0 {
		t.Errorf("the policy found %d events wrong", n)
	}
}
