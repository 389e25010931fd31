//go:build linux

package hook

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/broker"
)

// randomErrors returns errors of the driver in the middle of a program.
func randomErrors(r *rand.Rand) string {
	var out []string
	for _, name := range []string{
		"cuMemAlloc_v2", "cuMemAllocManaged", "cuMemAllocPitch_v2", "cuMemFree_v2", "cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemFreeAsync",
		"cuMemPoolDestroy", "cuArrayCreate_v2", "cuArrayDestroy", "cuMipmappedArrayCreate", "cuMipmappedArrayDestroy", "cuMemCreate", "cuMemRelease",
		"cuMemMap", "cuMemUnmap", "cuGraphInstantiateWithFlags", "cuGraphLaunch", "cuCtxDestroy_v2", "cuDevicePrimaryCtxReset_v2",
	} {
		for range 4 {
			out = append(out, fmt.Sprintf("%s@%d=%d", name, 1+r.IntN(40), []int{invalidValue, outOfMemory, 999}[r.IntN(3)]))
		}
	}
	return strings.Join(out, " ")
}

// A program that takes and frees memory of two GPUs in all ways at random, with several
// contexts and references, errors of the driver and other agents in between, has in the
// account of the agent what the GPUs have in use, to the byte.
func TestServedRandomMemory(t *testing.T) {
	onBoth(t, func(t *testing.T, x *sharing) {
		const limit = 12_000
		r, dir := needBuilds(t), x.hookDir
		x.program = "random-" + dir
		var flags string
		switch dir {
		case "hook-address":
			flags = "-fsanitize=address,undefined -fno-sanitize-recover=undefined"
		case "hook-thread":
			flags = "-fsanitize=thread"
		}
		if err := r.shareProgram(filepath.Join(r.dir, x.program), filepath.Join(r.dir, dir), flags, "testdata/random.c"); err != nil {
			t.Fatal(err)
		}
		for seed := range uint64(4) {
			rng := rand.New(rand.NewPCG(seed, 1))
			config := agent.Config{Broker: broker.Config{Policy: "timeslice", GPUs: fakeGPUs(2)}, Dir: shareDir(t)}
			config.State = filepath.Join(config.Dir, "state.json")
			s := serveWith(t, config)
			made, err := s.api.Create(t.Context(), agent.Part{ID: "a", GPUs: []string{"fake1", "fake0"}, Sizes: []agent.Size{{Memory: limit}, {Memory: limit}}})
			if err != nil {
				t.Fatal(err)
			}
			x.gpu = filepath.Join(t.TempDir(), "gpu")
			x.env = []string{
				"DXPU_SHARE=" + made.Socket, "FAKE_GPU_DEVICES=2", "ASAN_OPTIONS=detect_leaks=0", "TSAN_OPTIONS=halt_on_error=1",
				"FAKE_GPU_ERRORS=" + randomErrors(rng),
			}
			threads := 1 + 3*int(seed%2)
			p := x.start(t, fmt.Sprint(seed), fmt.Sprint(threads))
			for round := range 30 {
				if round%10 == 9 {
					s.stop()
					p.do(0, "run 200")
					s = serveWith(t, config)
					s.until("the program has come back", func() bool { return len(s.share("a").Processes) == 1 && s.share("a").Used > 0 })
				}
				p.do(0, "run 20")
				p.send("check")
				if bad, share, gpu := p.answer(); bad != 0 {
					t.Fatalf("seed %d, round %d: the share counts %d bytes, the GPU has %d in use", seed, round, share, gpu)
				}
			}
			p.end()
			for device := range 2 {
				if peak := x.wordOf(t, device, gpuPeak); peak > limit {
					t.Errorf("seed %d: %d bytes of device %d were in use, limit %d", seed, peak, device, limit)
				}
			}
			s.stop()
		}
	})
}
