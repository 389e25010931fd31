package test

import (
	"context"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/kubetest"
)

// leadersKilled: the leader of two controllers is killed when it has created the first lease of a claim,
// and its successor while the manager stands still and a claim waits for it. Each time the next one goes on,
// with the leases that there are.
func (e *env) leadersKilled() {
	e.controller.Kill()
	var replicas []*kubetest.Process
	start := func() {
		n := string(rune('a' + len(replicas)))
		replicas = append(replicas, e.startReplica("controller-"+n, append(e.flags, "--leader-elect")...))
		e.controller = replicas[len(replicas)-1]
		e.t.Cleanup(e.controller.Stop)
	}
	start()
	e.createPod(podSpec{name: "led-1"}) // the controller that serves it leads
	e.waitRunning("led-1")
	start()
	e.createPod(podSpec{name: "led-2", gpus: 3})
	e.wait("the first lease of the second pod", func(ctx context.Context) (bool, error) {
		all, err := e.leases(ctx)
		return len(all) > 1, err
	})
	replicas[0].Kill()
	e.waitRunning("led-2")
	start()
	pool := e.pool.Process("pool")
	e.createPod(podSpec{name: "led-3", gpus: 2})
	if err := pool.Pause(); err != nil {
		e.t.Fatal(err)
	}
	e.wait("the allocation while the manager stands still", func(ctx context.Context) (bool, error) {
		pod, err := e.pod(ctx, "led-3")
		if err != nil {
			return false, err
		}
		claim, err := e.claimOf(ctx, pod)
		return err == nil && claim.Status.Allocation != nil, err
	})
	replicas[1].Kill()
	if err := pool.Resume(); err != nil {
		e.t.Fatal(err)
	}
	e.deletePod("led-1") // while no controller leads
	e.waitRunning("led-3")
	e.checkInvariants()
	e.deletePod("led-2")
	e.deletePod("led-3")
	e.waitNoLease()
}
