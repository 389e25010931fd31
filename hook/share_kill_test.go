//go:build linux

package hook

import (
	"fmt"
	"math/rand/v2"
	"os"
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

// The test kills programs and the agent at random points, among allocations and launches
// whose answers it has not read. Nothing leaks: the agent's account is that of the GPU, in
// the end all memory and compute is free, and a new program gets the whole of each share.
// DXPU_SHARE_KILLS is the number of kills, DXPU_SHARE_SEED chooses the points.
func TestShareKills(t *testing.T) {
	const slots, limit, most = 4, 1 << 20, 20
	kills, seed := setting(t, "DXPU_SHARE_KILLS", 30), setting(t, "DXPU_SHARE_SEED", 1)
	x := newSharing(t, 0)
	dir, err := os.MkdirTemp("", "dxk") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := &installed{dir: dir, dxpu: buildDXPU(t)}
	stop := c.serve(t)
	t.Cleanup(func() { stop(os.Interrupt) })
	var sockets []string
	for _, name := range []string{"a", "b"} {
		s, err := c.api.Create(t.Context(), agent.Part{ID: name, Memory: limit, Compute: new(int64(400_000))})
		if err != nil {
			t.Fatal(err)
		}
		sockets = append(sockets, s.Socket)
	}
	start := func(slot int) *sharer {
		x.env = []string{"DXPU_SHARE=" + sockets[slot%2]}
		p := x.start(t)
		p.do(success, "init")
		return p
	}
	random := rand.New(rand.NewPCG(seed, 0))
	var live [slots]*sharer
	var unread [slots]int
	agents := 0
	for n := range int(kills) {
		slot := random.IntN(slots)
		if live[slot] == nil {
			live[slot], unread[slot] = start(slot), 0
		}
		p := live[slot]
		for range unread[slot] {
			p.answer()
		}
		unread[slot] = 1 + random.IntN(most)
		for i := range unread[slot] {
			switch random.IntN(4) {
			case 0:
				p.send("drop %d", (20*n+random.IntN(most))%1024) // of this turn, or of none
			case 1:
				p.send("launch cuLaunchKernel")
			default:
				p.send("take cuMemAlloc_v2 %d %d", 1+random.IntN(limit/4), (20*n+i)%1024)
			}
		}
		if random.IntN(8) == 0 {
			agents++
			stop(os.Kill)
			stop = c.serve(t)
			continue
		}
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		live[slot] = nil
	}
	var connected [2]int
	for slot, p := range live {
		if p == nil {
			continue
		}
		for range unread[slot] {
			p.answer()
		}
		p.do(success, "sync")
		connected[slot%2]++
	}
	watch := start(0) // the fake driver forgets the dead when a process comes
	connected[0]++
	for i, name := range []string{"a", "b"} {
		c.until("the living have come back to share "+name, func() bool { return len(c.share(name).Processes) == connected[i] })
	}
	if peak := x.gpuWord(t, gpuPeak); peak > 2*limit {
		t.Errorf("%d bytes were in use at once, above the limits of %d", peak, 2*limit)
	}
	var account string
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(account)
		}
	})
	c.until("the account is that of the GPU", func() bool {
		a, b, used := c.share("a"), c.share("b"), x.gpuWord(t, gpuInUse)
		account = fmt.Sprintf("the GPU has %d bytes in use, share a %+v, b %+v", used, a, b)
		return uint64(a.Used+b.Used) == used
	})
	for _, p := range append(live[:], watch) {
		if p != nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	}
	for i, name := range []string{"a", "b"} {
		c.until("nothing is left of share "+name, func() bool { s := c.share(name); return s.Used == 0 && len(s.Processes) == 0 })
		p := start(i)
		p.do(success, "take cuMemAlloc_v2 %d 0", limit)
		for range 10 {
			p.do(success, "launch cuLaunchKernel")
		}
		p.do(success, "sync")
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		if err := c.api.End(t.Context(), name, 0); err != nil {
			t.Fatal(err)
		}
	}
	c.until("all memory and compute is free", func() bool {
		l, err := c.api.GPUs(t.Context())
		return err == nil && l[0].Free == l[0].Memory && l[0].Compute == 1_000_000
	})
	c.until("no folder of a share is left", func() bool {
		l, err := os.ReadDir(dir + "/run")
		return err == nil && len(l) == 2 // the lock and the control socket
	})
	t.Logf("%d kills, %d of the agent, seed %d", kills, agents, seed)
}
