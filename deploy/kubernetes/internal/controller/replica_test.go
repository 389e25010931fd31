package controller

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dxpu-project/dxpu/client"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

var errCut = errors.New("the machine of the controller is off")

// startReplica starts another controller, with an API server of its own before the same objects.
func (w *torture) startReplica() {
	ctx, cancel := context.WithCancel(w.ctx)
	r := &replica{stop: cancel}
	w.replicas = append(w.replicas, r)
	kube := &fake.Clientset{}
	kube.AddReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		if r.cut.Load() {
			return true, nil, errCut
		}
		return false, nil, nil
	})
	kube.AddReactor("*", "events", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if create, is := a.(clienttesting.CreateAction); is {
			w.told(create.GetObject().(*corev1.Event))
		}
		return true, &corev1.Event{}, nil
	})
	for _, resource := range []string{"resourceclaims", "pods"} {
		kube.AddReactor("get", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			return w.chance(5), nil, w.busy()
		})
	}
	kube.AddReactor("update", "resourceclaims", r.killedAt(w, "status", w.updateStatus))
	kube.AddReactor("create", "pods", r.killedAt(w, "eviction", w.evict))
	kube.AddReactor("update", "resourceslices", completeSlice)
	kube.AddReactor("create", "resourceslices", nameSlice)
	kube.AddReactor("*", "*", clienttesting.ObjectReaction(w.kube.Tracker()))
	kube.AddWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		if r.cut.Load() {
			return true, nil, errCut
		}
		src, err := w.kube.Tracker().Watch(a.GetResource(), a.GetNamespace())
		if err != nil {
			return true, nil, err
		}
		if a.GetResource().Resource != claimsOf.Resource {
			return true, w.lag(src, nil, false), nil
		}
		return true, w.lag(src, w.missed(), true), nil
	})
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		if r.cut.Load() {
			return nil, errCut
		}
		return w.manager.dial(ctx, network, address)
	}}
	c, err := client.New(client.Config{Managers: []string{managerURL}, Transport: transport})
	if err != nil {
		w.Fatal(err)
	}
	w.running.Go(func() {
		defer c.Close()
		err := Run(ctx, Config{
			Kube: kube, Pool: &killingPool{c.Pool, w, r}, Managers: managerURL, Workers: 2, Metrics: NewMetrics(prometheus.NewRegistry()),
			Policy: claims.Policy{Tenant: func(string) string { return "lab" }, QueueTimeout: 20 * time.Second},
		})
		if err != nil && ctx.Err() == nil {
			w.Error(err)
		}
	})
}

// lagging is a watch whose changes come late.
type lagging struct {
	result chan watch.Event
	done   chan struct{}
	once   sync.Once
}

func (l *lagging) Stop() { l.once.Do(func() { close(l.done) }) }

func (l *lagging) ResultChan() <-chan watch.Event { return l.result }

func (l *lagging) send(e watch.Event) bool {
	select {
	case l.result <- e:
		return true
	case <-l.done:
		return false
	}
}

// lag hands the changes of a watch on late, and ends it after some time, while there are faults.
func (w *torture) lag(src watch.Interface, first []watch.Event, late bool) watch.Interface {
	out := &lagging{result: make(chan watch.Event), done: make(chan struct{})}
	queue := make(chan watch.Event, 10000)
	for _, e := range first {
		queue <- e
	}
	var end <-chan time.Time
	if w.chance(100) {
		end = time.After(time.Duration(5+w.roll(10)) * time.Second)
	}
	w.running.Go(func() { // the source has no room for many
		defer close(queue)
		defer src.Stop()
		for {
			select {
			case e := <-src.ResultChan():
				queue <- e
			case <-end:
				return
			case <-out.done:
				return
			}
		}
	})
	w.running.Go(func() {
		defer close(out.result)
		for e := range queue {
			if late && w.chance(20) {
				time.Sleep(time.Duration(w.roll(4000)) * time.Millisecond)
			}
			if !out.send(e) {
				return
			}
		}
		gone := apierrors.NewResourceExpired("too old").Status() // the reader lists again
		out.send(watch.Event{Type: watch.Error, Object: &gone})
	})
	return out
}

// missed returns what may have happened to claims between a list and the watch that follows it, of which
// the tracker of client-go tells nothing.
func (w *torture) missed() (out []watch.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.deleted {
		out = append(out, watch.Event{Type: watch.Deleted, Object: c})
	}
	for _, c := range w.claimsLocked() {
		out = append(out, watch.Event{Type: watch.Modified, Object: c})
	}
	return out
}

// roll returns a random number below n.
func (w *torture) roll(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.random.IntN(n)
}

// updateStatus writes the status of a claim as the API server does: not over a change, and the answer
// may be lost. It notes a claim that becomes ready without a lease of its own.
func (w *torture) updateStatus(a clienttesting.Action) (bool, runtime.Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	update := a.(clienttesting.UpdateAction).GetObject().(*resourceapi.ResourceClaim)
	obj, err := w.kube.Tracker().Get(claimsOf, update.Namespace, update.Name)
	if err != nil {
		return true, nil, err
	}
	is := obj.(*resourceapi.ResourceClaim).DeepCopy()
	switch {
	case w.chanceLocked(5):
		return true, nil, w.busyLocked()
	case is.UID != update.UID || is.ResourceVersion != update.ResourceVersion || w.chanceLocked(5):
		return true, nil, apierrors.NewConflict(claimsOf.GroupResource(), update.Name, errors.New("it has changed"))
	}
	w.checkReadyLocked(is, update)
	for _, d := range update.Status.Devices {
		if f := meta.FindStatusCondition(d.Conditions, inventory.Failed); f != nil && f.Status == metav1.ConditionTrue {
			w.checkFailedLocked(is.Namespace, is.Name, f.Reason, f.Message)
		}
	}
	is.Status.Devices = update.DeepCopy().Status.Devices
	w.putLocked(is)
	if w.chanceLocked(10) {
		return true, nil, apierrors.NewTimeoutError("though it has been written", 1)
	}
	return true, is.DeepCopy(), nil
}

// evict deletes a pod, unless it is another one by now.
func (w *torture) evict(a clienttesting.Action) (bool, runtime.Object, error) {
	if a.GetSubresource() != "eviction" {
		return false, nil, nil
	}
	e := a.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
	w.mu.Lock()
	defer w.mu.Unlock()
	obj, err := w.kube.Tracker().Get(podsOfCore, e.Namespace, e.Name)
	if err != nil {
		return true, nil, err
	}
	if w.chanceLocked(20) { // as for a budget of disruptions
		return true, nil, w.busyLocked()
	}
	if obj.(*corev1.Pod).UID != *e.DeleteOptions.Preconditions.UID {
		return true, nil, apierrors.NewConflict(podsOfCore.GroupResource(), e.Name, errors.New("another pod"))
	}
	w.deleteLocked(podsOfCore, e.Namespace, e.Name)
	w.done["evictions"]++
	if w.chanceLocked(20) {
		return true, nil, apierrors.NewTimeoutError("though it has been evicted", 1)
	}
	return true, e, nil
}

func (w *torture) busy() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.busyLocked()
}

// busyLocked returns an answer of an API server that does nothing now.
func (w *torture) busyLocked() error {
	switch w.random.IntN(4) {
	case 0:
		return apierrors.NewTooManyRequests("too many requests", 1)
	case 1:
		return apierrors.NewTimeoutError("the API server is slow", 1)
	case 2:
		return apierrors.NewServerTimeout(claimsOf.GroupResource(), "get", 1)
	default:
		return apierrors.NewInternalError(errors.New("etcd is slow"))
	}
}

// told checks what an event says of a claim.
func (w *torture) told(e *corev1.Event) {
	name, _, _ := strings.Cut(strings.TrimPrefix(e.Message, "GPU for claim "), ",")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done[e.Reason]++
	w.checkFailedLocked(e.InvolvedObject.Namespace, name, strings.TrimPrefix(e.Reason, "GPU"), e.Message)
}
