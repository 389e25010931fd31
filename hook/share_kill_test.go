//go:build linux

package hook

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
)

// setting returns a number of the environment.
func setting(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// killed is the set-up of TestShareKills: two shares with parts of the same GPUs, and two
// programs in each.
type killed struct {
	*installed
	x       *sharing
	shares  []agent.Share
	devices int
	limit   uint64
	random  *rand.Rand
	turn    int
	live    [4]*sharer
	unread  [4]int
}

var killedShares = []string{"a", "b"}

func newKilled(t *testing.T, devices int, seed uint64) *killed {
	dir, err := os.MkdirTemp("", "dxk") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return &killed{
		installed: &installed{dir: dir, dxpu: buildDXPU(t), gpus: []string{"g0", "g1"}[:devices]}, x: newSharing(t, 0),
		devices: devices, limit: 1 << 20, random: rand.New(rand.NewPCG(seed, 0)),
	}
}

// device returns the GPU of the first context of a program.
func (k *killed) device(slot int) int { return slot / 2 % k.devices }

// start starts a program, with a context on each GPU.
func (k *killed) start(t *testing.T, slot int) *sharer {
	t.Helper()
	k.x.env = []string{"DXPU_SHARE=" + k.shares[slot%2].Socket, fmt.Sprintf("FAKE_GPU_DEVICES=%d", k.devices)}
	p := k.x.start(t)
	p.do(success, "init %d", k.device(slot))
	if k.devices > 1 {
		p.do(success, "other %d", 1-k.device(slot))
	}
	return p
}

// order sends a program an order at random: to allocate, to free, or to launch, on one of its
// GPUs.
func (k *killed) order(slot, i int) {
	const most = 20
	p, other := k.live[slot], k.devices > 1 && k.random.IntN(2) == 0
	switch n := 1 + k.random.IntN(int(k.limit/4)); k.random.IntN(4) {
	case 0:
		p.send("drop %d", (most*k.turn+k.random.IntN(most))%1024) // of this turn, or of none
	case 1:
		if other {
			p.send("launch-other")
			return
		}
		p.send("launch cuLaunchKernel")
	default:
		if other {
			p.send("take-on x %d %d", n, 1-k.device(slot))
			return
		}
		p.send("take cuMemAlloc_v2 %d %d", n, (most*k.turn+i)%1024)
	}
}

// kill gives a program orders, and kills it or the agent before it has read all answers. It
// reports whether it was the agent.
func (k *killed) kill(t *testing.T, stop *func(os.Signal)) bool {
	slot := k.random.IntN(len(k.live))
	if k.live[slot] == nil {
		k.live[slot], k.unread[slot] = k.start(t, slot), 0
	}
	for range k.unread[slot] {
		k.live[slot].answer()
	}
	k.unread[slot] = 1 + k.random.IntN(20)
	for i := range k.unread[slot] {
		k.order(slot, i)
	}
	k.turn++
	if k.random.IntN(8) == 0 {
		(*stop)(os.Kill)
		*stop = k.serve(t)
		return true
	}
	_ = k.live[slot].cmd.Process.Kill()
	_ = k.live[slot].cmd.Wait()
	k.live[slot] = nil
	return false
}

// used returns what the account has of a GPU, and what the GPU has.
func (k *killed) used(t *testing.T, device int) (account, has uint64) {
	for _, name := range killedShares {
		account += uint64(k.share(name).Parts[device].Used)
	}
	return account, k.x.wordOf(t, device, gpuInUse)
}

// settle waits until those that live have come back, and compares the account with the GPUs.
// Then it ends them.
func (k *killed) settle(t *testing.T) {
	var connected [2]int
	for slot, p := range k.live {
		if p == nil {
			continue
		}
		for range k.unread[slot] {
			p.answer()
		}
		p.do(success, "sync")
		connected[slot%2]++
	}
	watch := k.start(t, 0) // the fake driver forgets the dead when a process comes
	connected[0]++
	for i, name := range killedShares {
		k.until("the living have come back to share "+name, func() bool { return len(k.share(name).Processes) == connected[i] })
	}
	var account string
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(account)
		}
	})
	for device := range k.devices {
		if peak := k.x.wordOf(t, device, gpuPeak); peak > 2*k.limit {
			t.Errorf("%d bytes of GPU %d were in use at once, above the limits of %d", peak, device, 2*k.limit)
		}
		k.until("the account is that of the GPU", func() bool {
			a, has := k.used(t, device)
			account = fmt.Sprintf("GPU %d has %d bytes in use, the account %d", device, has, a)
			return a == has
		})
	}
	for _, p := range append(k.live[:], watch) {
		if p != nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	}
}

// The test kills programs and the agent at random points, among allocations and launches on
// two GPUs whose answers it has not read. Nothing leaks: the agent's account is that of each
// GPU, in the end all memory and compute is free, and a new program gets the whole of each part.
// DXPU_SHARE_KILLS is the number of kills, DXPU_SHARE_SEED chooses the points, DXPU_SHARE_GPUS is
// the number of GPUs, 1 or 2.
func TestShareKills(t *testing.T) {
	kills, seed := setting(t, "DXPU_SHARE_KILLS", 30), setting(t, "DXPU_SHARE_SEED", 1)
	k := newKilled(t, int(setting(t, "DXPU_SHARE_GPUS", 2)), seed)
	stop := k.serve(t)
	t.Cleanup(func() { stop(os.Interrupt) })
	for _, name := range killedShares {
		s, err := k.api.Create(t.Context(), agent.Part{ID: name, GPUs: k.gpus, Memory: int64(k.limit), Compute: new(int64(400_000))})
		if err != nil {
			t.Fatal(err)
		}
		k.shares = append(k.shares, s)
	}
	agents := 0
	for range kills {
		if k.kill(t, &stop) {
			agents++
		}
	}
	k.settle(t)
	for i, name := range killedShares {
		k.until("nothing is left of share "+name, func() bool { s := k.share(name); return s.Used == 0 && len(s.Processes) == 0 })
		for device := range k.devices {
			p := k.start(t, i+2*device)
			p.do(success, "take cuMemAlloc_v2 %d 0", k.limit)
			for range 10 {
				p.do(success, "launch cuLaunchKernel")
			}
			p.do(success, "sync")
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
		if err := k.api.End(t.Context(), name, 0); err != nil {
			t.Fatal(err)
		}
	}
	k.until("all memory and compute is free", func() bool {
		l, err := k.api.GPUs(t.Context())
		return err == nil && !slices.ContainsFunc(l, func(g agent.GPU) bool { return g.Free != g.Memory || g.Compute != 1_000_000 })
	})
	k.until("no folder of a share is left", func() bool {
		l, err := os.ReadDir(k.dir + "/run")
		return err == nil && len(l) == 2 // the lock and the control socket
	})
	t.Logf("%d kills, %d of the agent, seed %d", kills, agents, seed)
}
