package vfiouser

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// A VMM holds the locks for which a question about it waits: the connection goes on after the
// time limit, and so do later ones.
func TestQuestionWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a asker
		locked := make(chan struct{})
		if err := a.ask(time.Second, func() error { <-locked; return nil }); !errors.Is(err, unix.ETIMEDOUT) {
			t.Errorf("the answer: %v", err)
		}
		asked := func() error { return a.ask(time.Second, func() error { return unix.EINVAL }) }
		if err := asked(); !errors.Is(err, unix.ETIMEDOUT) {
			t.Errorf("the answer to a question behind one that waits: %v", err)
		}
		close(locked)
		synctest.Wait()
		if err := asked(); !errors.Is(err, unix.EINVAL) {
			t.Errorf("the answer to a later question: %v", err)
		}
	})
}
