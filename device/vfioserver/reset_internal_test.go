package vfioserver

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// resetter tells its resets.
type resetter struct {
	echo
	reset chan struct{}
}

func (r *resetter) Reset(_ *vfiouser.Conn, done func(error)) {
	done(nil)
	r.reset <- struct{}{}
}

// The server learns the end of its DMA for the former tenant before it resets, however
// late the goroutine runs that tells it. If it takes no answers, it is reset all the same.
func TestResetFollowsTheAnswers(t *testing.T) {
	for name, never := range map[string]bool{"late answers": false, "no answers taken": true} {
		t.Run(name, func(t *testing.T) {
			r := &resetter{reset: make(chan struct{}, 1)}
			c := &connection{
				log: slog.New(slog.DiscardHandler), client: connectTo(t, vfiouser.Config{Handler: r, Resettable: true}),
				fired: map[vectorID]struct{}{}, signal: make(chan struct{}, 1), failed: make(chan struct{}), notify: func() {},
			}
			c.about.resettable, c.about.config = true, make([]byte, pcie.ConfigSize)
			c.ctx, c.cancel = context.WithCancel(t.Context())
			c.requests, c.answers = newWorker(c.wake), newWorker(func() {})
			c.dma.init(c.finishDMA, device.Limits{Tags: 1})
			answered := make(chan struct{})
			c.answers.push(0, func() { // as an answer that waits for the processor or for the server
				defer close(answered)
				patience := stallTimeout / 10
				if never {
					patience = time.Minute
				}
				select {
				case <-r.reset:
					if !never {
						t.Error("the reset has passed the answer")
					}
				case <-time.After(patience):
				}
			})
			c.wg.Go(c.requests.run)
			c.wg.Go(c.answers.run)
			c.reset(0, device.FunctionLevelReset)
			<-answered
			c.requests.stop()
			c.answers.stop()
			c.wg.Wait()
			c.cancel()
		})
	}
}
