package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// Two replicas on one machine have one host name, but only one of them leads; the other one
// follows when the work of the first has ended.
func TestElected(t *testing.T) {
	kube := fake.NewClientset()
	o := &controllerOptions{namespace: "dxpu-system", leaseDuration: 15 * time.Second}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	working, release, ended := make(chan struct{}), make(chan struct{}), make(chan error, 2)
	go func() {
		ended <- o.elected(ctx, kube, func(ctx context.Context) error {
			close(working)
			<-ctx.Done()
			<-release
			return nil
		})
	}()
	<-working

	looked, worked := make(chan struct{}), make(chan struct{})
	other := &fake.Clientset{}
	other.AddReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		select {
		case looked <- struct{}{}:
		case <-release:
		}
		return false, nil, nil
	})
	other.AddReactor("*", "*", clienttesting.ObjectReaction(kube.Tracker()))
	go func() {
		ended <- o.elected(t.Context(), other, func(context.Context) error {
			close(worked)
			return errors.New("enough")
		})
	}()
	alone := func(when string) {
		t.Helper()
		for range 2 { // the first look may end in the election, the second shows that it did not
			select {
			case <-looked:
			case <-worked:
				t.Fatalf("two replicas work, %s", when)
			}
		}
	}
	alone("while one leads")
	stop()
	alone("while the work of the leader ends")
	close(release)
	<-worked
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the first ended with %v", err)
	}
	if err := <-ended; err == nil || err.Error() != "enough" {
		t.Errorf("the second ended with %v", err)
	}
}

// A replica that cannot renew its lease ends its work, and says why.
func TestElectionLost(t *testing.T) {
	kube := fake.NewClientset()
	o := &controllerOptions{namespace: "dxpu-system", leaseDuration: 1500 * time.Millisecond}
	var away atomic.Bool
	kube.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return away.Load(), nil, errors.New("the API server is away")
	})
	err := o.elected(t.Context(), kube, func(ctx context.Context) error {
		away.Store(true)
		<-ctx.Done()
		return nil
	})
	if !errors.Is(err, errLost) {
		t.Errorf("ended with %v", err)
	}
}
