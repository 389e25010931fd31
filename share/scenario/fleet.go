package scenario

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// experiments are studies of more than one GPU, at the level of jobs.
var experiments = map[string]func(context.Context, *Spec) (Values, error){
	"kubeshare": kubeshareStudy,
	"dgsf":      dgsfStudy,
	"iadeep":    iadeepStudy,
	"matching":  matchingStudy,
}

// pod is a job of the study of KubeShare.
type pod struct {
	share.SharePod
	work time.Duration // at its request
	end  time.Duration
	gpu  int
}

const (
	podGPUs    = 8
	podCount   = 400
	podGap     = 4 * time.Second // between two arrivals: more than whole GPUs can take
	podHorizon = podCount * podGap
)

// kubeshareStudy runs a queue of inference jobs, which need 20 to 60 % of a GPU for a
// minute on average, on eight GPUs: each on a whole GPU, and on shared ones. The queue is
// in the order of arrival; the value is the number of jobs that end before the last one
// arrives.
func kubeshareStudy(_ context.Context, s *Spec) (Values, error) {
	v := Values{}
	for _, shared := range []bool{false, true} {
		rng := rand.New(rand.NewPCG(s.Seed, 1))
		var jobs []pod
		for range podCount {
			jobs = append(jobs, pod{work: octaves(rng, 20*time.Second, 160*time.Second), SharePod: share.SharePod{
				Request: share.Percent(20 + 10*rng.IntN(5)), Memory: int64(2+rng.IntN(7)) << 30,
			}})
		}
		name := "whole.jobs"
		if shared {
			name = "shared.jobs"
		}
		v[name] = float64(runPods(jobs, shared))
	}
	return v, nil
}

func runPods(jobs []pod, shared bool) (ended int) {
	gpus := make([]share.VGPU, podGPUs)
	for i := range gpus {
		gpus[i].Device = share.A100
	}
	var running []pod
	next := 0
	for now := time.Duration(0); now < podHorizon; now += time.Second {
		keep := running[:0]
		for _, p := range running {
			if p.end > now {
				keep = append(keep, p)
				continue
			}
			ended++
			pods := gpus[p.gpu].Pods
			for i := range pods {
				if pods[i] == p.SharePod {
					gpus[p.gpu].Pods = append(pods[:i], pods[i+1:]...)
					break
				}
			}
		}
		running = keep
		for next < len(jobs) && now >= time.Duration(next)*podGap {
			p := jobs[next]
			if !shared {
				p.Request = share.Whole
			}
			gpu, ok := share.PlaceSharePod(gpus, p.SharePod)
			if !ok {
				break
			}
			p.gpu, p.end = gpu, now+p.work
			gpus[gpu].Pods = append(gpus[gpu].Pods, p.SharePod)
			running = append(running, p)
			next++
		}
	}
	return ended
}

// invocation is a call of a serverless function in the study of DGSF.
type invocation struct {
	arrival, start, moved time.Duration
	left                  time.Duration // of its GPU time, alone
	gpu                   int
	begun, done           bool
}

// Constants of the study, ours: the time that CUDA takes to begin is some seconds in
// DGSF's measurements too.
const (
	dgsfGPUs    = 4
	dgsfCalls   = 600
	dgsfTick    = 50 * time.Millisecond
	dgsfCold    = 3 * time.Second        // contexts and descriptors made on demand
	dgsfWarm    = 5 * time.Millisecond   // made before
	dgsfMove    = 200 * time.Millisecond // a move of 3 GiB and its mappings
	dgsfWorkers = 2                      // for each GPU
	dgsfDuty    = 60                     // percent of a GPU that one function uses
)

// dgsfStudy runs serverless functions on four GPUs: one at a time on each, with and
// without warm workers, and two at a time, with and without moves.
func dgsfStudy(_ context.Context, s *Spec) (Values, error) {
	v := Values{"cold.first": float64(dgsfCold), "warm.first": float64(dgsfWarm)}
	for _, c := range []struct {
		name    string
		start   time.Duration
		workers int
		balance bool
	}{
		{"cold", dgsfCold, 1, false},
		{"warm", dgsfWarm, 1, false},
		{"shared", dgsfWarm, dgsfWorkers, false},
		{"balanced", dgsfWarm, dgsfWorkers, true},
	} {
		rng := rand.New(rand.NewPCG(s.Seed, 2))
		var calls []invocation
		at := time.Duration(0)
		for range dgsfCalls {
			at += time.Duration(rng.ExpFloat64() * float64(1800*time.Millisecond))
			calls = append(calls, invocation{arrival: at, left: octaves(rng, 2*time.Second, 8*time.Second)})
		}
		queue, total, moves := runCalls(calls, c.start, c.workers, c.balance)
		v[c.name+".queue"], v[c.name+".total"], v[c.name+".moves"] = queue, total, float64(moves)
	}
	return v, nil
}

// runCalls returns the mean time in the queue, the mean time to the end, and the moves.
func runCalls(calls []invocation, begin time.Duration, workers int, balance bool) (queue, total float64, moves int) {
	var b share.Balancer
	next, left := 0, len(calls)
	for now := time.Duration(0); left > 0; now += dgsfTick {
		busy := make([]int, dgsfGPUs)
		for i := range calls[:next] {
			if !calls[i].done {
				busy[calls[i].gpu]++
			}
		}
		for next < len(calls) && calls[next].arrival <= now {
			gpu := fullest(busy, workers)
			if gpu < 0 {
				break
			}
			c := &calls[next]
			c.gpu, c.begun, c.start = gpu, true, now
			c.moved = now + begin
			busy[gpu]++
			next++
			queue += float64(now - c.arrival)
		}
		if balance && now%share.BalancePeriod == 0 {
			if from, to, ok := b.Observe(now, busy); ok {
				moves += move(calls[:next], from, to, now)
			}
		}
		for i := range calls[:next] {
			c := &calls[i]
			if c.done || now < c.moved {
				continue
			}
			// Several functions share the GPU's time as far as they need more than all.
			c.left -= dgsfTick * 100 / time.Duration(max(100, busy[c.gpu]*dgsfDuty))
			if c.left <= 0 {
				c.done = true
				left--
				total += float64(now - c.arrival)
			}
		}
	}
	return queue / float64(len(calls)), total / float64(len(calls)), moves
}

// fullest is DGSF's best fit: the GPU with the least free memory that has room.
func fullest(busy []int, workers int) int {
	best := -1
	for g, n := range busy {
		if n < workers && (best < 0 || n > busy[best]) {
			best = g
		}
	}
	return best
}

// move moves the newest function of a GPU.
func move(calls []invocation, from, to int, now time.Duration) int {
	for i := len(calls) - 1; i >= 0; i-- {
		if c := &calls[i]; !c.done && c.gpu == from {
			c.gpu, c.moved = to, max(c.moved, now+dgsfMove)
			return 1
		}
	}
	return 0
}

// pairs measures the speed of each program beside each other one on the model of a GPU,
// relative to alone: pairs[a][b] is that of a.
func pairs(ctx context.Context, s *Spec, programs []string, policy string, offline bool) ([][]float64, error) {
	run := func(a, b string) (float64, error) {
		m := Spec{Name: "pair", Seed: s.Seed, Duration: 1200 * time.Millisecond, Warmup: 200 * time.Millisecond, device: s.device}
		m.Clients = []Client{{Name: "a", Program: a, Offline: offline}}
		if b != "" {
			m.Clients = append(m.Clients, Client{Name: "b", Program: b, Offline: offline})
		}
		m.Runs = []Run{{Name: "r", Policy: policy}}
		v, err := m.simulate(ctx)
		return v["r.a.sms"], err
	}
	out := make([][]float64, len(programs))
	for i, a := range programs {
		alone, err := run(a, "")
		if err != nil {
			return nil, err
		}
		for _, b := range programs {
			x, err := run(a, b)
			if err != nil {
				return nil, err
			}
			if alone == 0 {
				return nil, fmt.Errorf("program %s does nothing alone", a)
			}
			out[i] = append(out[i], x/alone)
		}
	}
	return out, nil
}
