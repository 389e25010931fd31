package scenario

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// trainings are the programs of the studies of pairs.
var trainings = []string{"resnet50-training", "bert-training", "mobilenet-training", "input-bound-training", "long-kernels-training"}

// iadeepStudy places jobs on eight GPUs, two at most on each: where they interfere least,
// and blindly on the emptiest GPU. The slow-downs are those of pairs on the model of
// the GPU. It also tunes the batch size of a newcomer.
func iadeepStudy(ctx context.Context, s *Spec) (Values, error) {
	speed, err := pairs(ctx, s, trainings, "streams", false)
	if err != nil {
		return nil, err
	}
	slowdown := func(a, b int) float64 { return 1/max(speed[a][b], 0.01) - 1 }
	v := Values{}
	for _, load := range []struct {
		name string
		gap  time.Duration
	}{{"busy", busyGap}, {"full", fullGap}} {
		for seed := range uint64(completionSeeds) {
			queue := func() *rand.Rand { return rand.New(rand.NewPCG(s.Seed+seed, 3)) }
			v[load.name+"-aware.completion"] += completion(queue(), speed, load.gap, slowdown)
			v[load.name+"-blind.completion"] += completion(queue(), speed, load.gap, func(int, int) float64 { return 1 })
		}
	}
	t := share.NewBatchTuner(64)
	cost := func(batch int) float64 { // an iteration takes 20 ms and 1.5 ms a sample, shared
		return share.StatisticalCost(20+1.5*float64(batch), float64(batch), 64, 1200)
	}
	for b, ok := t.Next(); ok; b, ok = t.Next() {
		t.Observe(b, cost(b))
	}
	v["tuned.batch"], v["tuned.cost"], v["initial.cost"] = float64(t.Best()), cost(t.Best()), cost(64)
	return v, nil
}

// Mean times between two jobs of the study of IADeep: with the first one there is mostly a
// choice of GPUs, with the second one nearly none. The study has several queues of each kind.
const (
	busyGap         = 3 * time.Second
	fullGap         = 2 * time.Second
	completionSeeds = 5
)

// completion returns the mean time to the end of jobs that arrive one after another, some time
// apart on average.
func completion(rng *rand.Rand, speed [][]float64, gap time.Duration, predict func(a, b int) float64) float64 {
	const gpuCount, jobCount, tick = 8, 300, 100 * time.Millisecond
	type job struct {
		program, gpu int
		arrival      time.Duration
		left         float64
		done         bool
	}
	var jobs []job
	at := time.Duration(0)
	for range jobCount {
		at += time.Duration(rng.ExpFloat64() * float64(gap))
		jobs = append(jobs, job{program: rng.IntN(len(speed)), arrival: at, left: octaves(rng, 10*time.Second, 40*time.Second).Seconds(), gpu: -1})
	}
	sum, left, next := 0.0, jobCount, 0
	for now := time.Duration(0); left > 0; now += tick {
		on := make([][]int, gpuCount)
		for i := range jobs[:next] {
			if !jobs[i].done {
				on[jobs[i].gpu] = append(on[jobs[i].gpu], jobs[i].program)
			}
		}
		for next < jobCount && jobs[next].arrival <= now {
			g, ok := share.LeastInterference(on, jobs[next].program, 2, predict)
			if !ok {
				break
			}
			jobs[next].gpu = g
			on[g] = append(on[g], jobs[next].program)
			next++
		}
		for i := range jobs[:next] {
			j := &jobs[i]
			if j.done {
				continue
			}
			rate := 1.0
			if both := on[j.gpu]; len(both) == 2 {
				other := both[0]
				if other == j.program {
					other = both[1]
				}
				rate = speed[j.program][other]
			}
			if j.left -= rate * tick.Seconds(); j.left <= 0 {
				j.done = true
				left--
				sum += float64(now - j.arrival)
			}
		}
	}
	return sum / jobCount
}

// matchingStudy pairs online services with offline trainings on one GPU each, by MuxFlow's
// matching and in the order of the lists. The weights are the offline throughputs that
// the model of the GPU gives with the policy muxflow.
func matchingStudy(ctx context.Context, s *Spec) (Values, error) {
	services := []Client{
		{Program: "resnet50-inference", Rate: 250},
		{Program: "bert-inference", Rate: 60},
		{Program: "mobilenet-inference", Rate: 150},
		{Program: "recommend-inference", Rate: 300},
		{Program: "resnet50-inference", Rate: 50},
	}
	weights := make([][]int64, len(services))
	for i, service := range services {
		for _, p := range trainings {
			m := Spec{Name: "pair", Seed: s.Seed, Duration: 4 * time.Second, Warmup: 2 * time.Second, device: s.device}
			service.Name = "a"
			m.Clients = []Client{service, {Name: "b", Program: p, Offline: true}}
			m.Runs = []Run{{Name: "pair", Policy: "muxflow"}, {Name: "alone", Policy: "streams", Clients: []string{"b"}}}
			v, err := m.simulate(ctx)
			if err != nil {
				return nil, err
			}
			weights[i] = append(weights[i], int64(1000*v["pair.b.sms"]/max(v["alone.b.sms"], 0.001)))
		}
	}
	match, err := share.Match(weights)
	if err != nil {
		return nil, err
	}
	v := Values{}
	for i, j := range match {
		if j >= 0 {
			v["matched.throughput"] += float64(weights[i][j]) / 1000
		}
		v["listed.throughput"] += float64(weights[i][i]) / 1000
	}
	return v, nil
}
