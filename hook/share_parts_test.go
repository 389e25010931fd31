//go:build linux

package hook

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/offer"
	"github.com/dxpu-project/dxpu/share"
)

// gpuSize is the size of a GPU in the file of the fake GPUs.
const gpuSize = 6*8 + 64*24

// wordOf is gpuWord for any of the fake GPUs.
func (x *sharing) wordOf(t testing.TB, gpu, index int) uint64 {
	t.Helper()
	b, err := os.ReadFile(x.gpu)
	if err != nil || len(b) < 16+gpuSize*(gpu+1) {
		t.Fatalf("the file of the fake GPUs: %d bytes, %v", len(b), err)
	}
	return binary.LittleEndian.Uint64(b[16+gpuSize*gpu+8*index:])
}

// onBoth runs a test with the library as it is, and with each sanitizer, on two fake GPUs.
func onBoth(t *testing.T, test func(t *testing.T, x *sharing)) {
	for _, tc := range []struct{ name, flags string }{
		{"plain", ""},
		{"address", "-fsanitize=address,undefined -fno-sanitize-recover=undefined"},
		{"thread", "-fsanitize=thread"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newSharing(t, 0)
			if tc.flags != "" {
				if testing.Short() {
					t.Skip("builds the library once more")
				}
				if err := needBuilds(t).has(t, tc.flags); err != nil {
					t.Skipf("the compiler has no such sanitizer: %v", err)
				}
				x.sanitize(t, tc.name, tc.flags)
			}
			test(t, x)
		})
	}
}

// in starts a program in a share.
func (x *sharing) in(t *testing.T, s agent.Share, gpu int) *sharer {
	t.Helper()
	x.env = []string{"DXPU_SHARE=" + s.Socket, "FAKE_GPU_DEVICES=2", "ASAN_OPTIONS=detect_leaks=0", "TSAN_OPTIONS=halt_on_error=1"}
	p := x.start(t)
	p.do(success, "init %d", gpu)
	return p
}

// Programs with 30 % of one GPU and 60 % of another one have memory up to each limit, to the
// byte, all together, and launch on both. One part is resized, and the agent is another one
// in between. Nothing of the programs stays.
func TestServedParts(t *testing.T) {
	onBoth(t, func(t *testing.T, x *sharing) {
		config := agent.Config{Broker: broker.Config{Policy: "timeslice", GPUs: fakeGPUs(2)}, Dir: shareDir(t)}
		config.State = filepath.Join(config.Dir, "state.json")
		s := serveWith(t, config)
		limits := []int{40_000, 70_000}
		// The page has the GPUs in another order than the driver.
		made, err := s.api.Create(t.Context(), agent.Part{ID: "a", GPUs: []string{"fake1", "fake0"}, Sizes: []agent.Size{
			{Memory: int64(limits[1]), Compute: new(int64(600_000))}, {Memory: int64(limits[0]), Compute: new(int64(300_000))},
		}})
		if err != nil {
			t.Fatal(err)
		}
		all := []*sharer{x.in(t, made, 0), x.in(t, made, 1)}
		for device, limit := range limits {
			if _, total := all[0].do(success, "total %d", device); total != uint64(limit) {
				t.Errorf("device %d: total %d, want %d", device, total, limit)
			}
		}
		const takes, bytes = 100, 1000 // of each program on each device
		for _, p := range all {
			for n := range 2 * takes {
				p.send("take-on x %d %d", bytes, n%2)
			}
		}
		for _, p := range all {
			for range 2 * takes {
				if r, _, _ := p.answer(); r != success && r != outOfMemory {
					t.Fatalf("take: result %d", r)
				}
			}
		}
		exact := func(what string) {
			t.Helper()
			for device, limit := range limits {
				if used, peak := x.wordOf(t, device, gpuInUse), x.wordOf(t, device, gpuPeak); used != uint64(limit) || peak != used {
					t.Errorf("%s: device %d has %d bytes in use, %d at most, want %d", what, device, used, peak, limit)
				}
			}
		}
		exact("two programs")
		for device, p := range all {
			if free, total := p.do(success, "info"); free != 0 || total != uint64(limits[device]) {
				t.Errorf("device %d: %d of %d bytes free", device, free, total)
			}
			p.do(success, "other %d", 1-device)
			for range 5 {
				p.do(success, "launch cuLaunchKernel")
				p.do(success, "launch-other")
			}
			p.do(success, "sync")
		}
		s.until("the launches are counted", func() bool { return s.share("a").Launches >= 20 })
		for device := range limits {
			if n := x.wordOf(t, device, gpuLaunches); n != 10 {
				t.Errorf("device %d: %d launches, want 10", device, n)
			}
		}

		s.stop()
		s = serveWith(t, config)
		limits[0] += 3 * bytes
		if _, err := s.api.Resize(t.Context(), "a", agent.Part{GPUs: []string{"fake0"}, Memory: int64(limits[0])}); err != nil {
			t.Fatal(err)
		}
		s.until("the programs have come back", func() bool {
			got := s.share("a")
			return len(got.Processes) == 2 && got.Parts[0].Used == int64(limits[1]) && got.Parts[1].Used == int64(limits[0]-3*bytes)
		})
		all[0].do(success, "take-on x %d 0", 2*bytes)
		all[1].do(success, "take-on x %d 0", bytes)
		all[0].do(outOfMemory, "take-on x 1 0")
		all[1].do(outOfMemory, "take-on x 1 1")
		exact("after the resize")
		all[0].end()
		_ = all[1].cmd.Process.Kill()
		_ = all[1].cmd.Wait()
		s.until("nothing is left", func() bool {
			got := s.share("a")
			return got.Used == 0 && len(got.Processes) == 0
		})
	})
}

// A GPU that leaves a lease ends the program that used it. The program on the other GPU of
// the lease goes on, and gets no context on the GPU that has left.
func TestServedLeaseLosesAGPU(t *testing.T) {
	onBoth(t, func(t *testing.T, x *sharing) {
		s := serveWith(t, agent.Config{Broker: broker.Config{Policy: "gemini", GPUs: fakeGPUs(2)}, Pool: "http://pool"})
		act := func(kind offer.Kind, gpu int, grace time.Duration) {
			t.Helper()
			err := s.agent.Do(&offer.Action{
				Kind: kind, Lease: offer.Lease{Binding: offer.Binding{Pool: "c", ID: []string{"B-1", "B-2"}[gpu]}, Lease: "l-1", BoxSlot: uint32(gpu), HostSlot: uint32(gpu)},
				Memory: 1000, Compute: share.Whole, Grace: grace,
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		for gpu := range 2 {
			act(offer.Open, gpu, 0)
			act(offer.Attach, gpu, 0)
		}
		made, err := s.api.Enter(t.Context(), "l-1")
		if err != nil || len(made.GPUs) != 2 {
			t.Fatalf("%v, share %+v", err, made)
		}
		first, second := x.in(t, made, 0), x.in(t, made, 1)
		first.do(success, "take cuMemAlloc_v2 1000 0")
		first.do(outOfMemory, "take cuMemAlloc_v2 1 1")
		second.do(success, "take cuMemAlloc_v2 1000 0")
		act(offer.End, 0, time.Minute)
		if err := first.cmd.Wait(); err == nil {
			t.Error("the program ended by itself")
		}
		s.until("the GPU has left the lease", func() bool { return len(s.agent.Offered().Shares) == 1 })
		second.do(success, "launch cuLaunchKernel")
		second.do(success, "sync")
		second.do(success, "drop 0")
		second.do(success, "take cuMemAlloc_v2 1000 0")
		second.do(notPermitted, "context 0")
		second.do(outOfMemory, "take-on x 1 0")
		if _, total := second.do(success, "total 0"); total != 0 {
			t.Errorf("total %d of a GPU that has left", total)
		}
		act(offer.Open, 0, 0)
		act(offer.Attach, 0, 0)
		second.do(success, "context 0")
		second.do(success, "take cuMemAlloc_v2 1000 1")
		second.do(success, "destroy")
		second.end()
		for gpu := range 2 {
			act(offer.End, gpu, 0)
		}
		s.until("the lease has ended", func() bool { return len(s.agent.Offered().Shares) == 0 })
	})
}

// Launches without permits count for the GPU on which they run: the pool sees by them which
// GPUs of a lease are in use.
func TestServedPartsCountLaunches(t *testing.T) {
	onBoth(t, func(t *testing.T, x *sharing) {
		s := serveWith(t, agent.Config{Broker: broker.Config{Policy: "gemini", GPUs: fakeGPUs(2)}, Pool: "http://pool"})
		for gpu := range 2 {
			for _, kind := range []offer.Kind{offer.Open, offer.Attach} {
				err := s.agent.Do(&offer.Action{
					Kind: kind, Lease: offer.Lease{Binding: offer.Binding{Pool: "c", ID: []string{"B-1", "B-2"}[gpu]}, Lease: "l-1", BoxSlot: uint32(gpu), HostSlot: uint32(gpu)},
					Memory: 1000, Compute: share.Whole,
				})
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		made, err := s.api.Enter(t.Context(), "l-1")
		if err != nil {
			t.Fatal(err)
		}
		p := x.in(t, made, 0)
		p.do(success, "other 1")
		for range 3 {
			p.do(success, "launch cuLaunchKernel")
		}
		for range 5 {
			p.do(success, "launch-other")
		}
		var counts [2]uint64
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("launches %v", counts)
			}
		})
		s.until("the launches are counted", func() bool {
			for _, on := range s.agent.Offered().Shares {
				counts[on.BoxSlot] = on.Launches
			}
			return counts[0]+counts[1] == 8
		})
		if counts != [2]uint64{3, 5} {
			t.Errorf("launches %v, want 3 and 5", counts)
		}
		p.end()
	})
}
