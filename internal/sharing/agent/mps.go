//go:build linux

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/sharing/mps"
	"github.com/dxpu-project/dxpu/share"
)

const (
	// joinWait is how long one call waits for a client's turn. It is shorter than the
	// control socket's time for an answer: the caller asks again.
	joinWait = 5 * time.Second
	// mpsGrace is the time to end of a share with a client of MPS. The service cancels the
	// client's work and asks for its kill before: it has the order that spares the others.
	mpsGrace = time.Minute
)

// MPS is the Multi-Process Service of one GPU, such as nvidia.MPS. Run ends when the
// service has stopped after Stop.
type MPS interface {
	Run(ctx context.Context) error
	Stop()
	Admit(c mps.Client) error
	Leave(id mps.ClientID)
	Resize(id mps.ClientID, l mps.Limits) error
	ClientEnv() []string
}

// client is the program of a share as a client of MPS. A share has one at most: the
// process that owns it.
type client struct {
	id     mps.ClientID
	gpu    int
	limits mps.Limits // at its start
	ready  chan struct{}
	done   bool // ready is closed
	err    error
}

func (c *client) settle(err error) {
	if !c.done {
		c.done, c.err = true, err
		close(c.ready)
	}
}

// openMPS makes the services of the GPUs.
func (a *Agent) openMPS() error {
	if a.config.MPS == nil {
		return nil
	}
	for gpu, p := range a.patients {
		if p.missing != "" {
			a.services = append(a.services, nil)
			continue
		}
		s, err := a.config.MPS(gpu, func(n mps.Notice) { a.notice(gpu, n) })
		if err != nil {
			return err
		}
		a.services = append(a.services, s)
	}
	return nil
}

// lead stops the services when the agent is to end, and then ends its other work, which
// ends the clients.
func (a *Agent) lead(stop, work context.Context, end func()) error {
	defer end()
	select {
	case <-stop.Done():
	case <-work.Done():
		return nil
	}
	a.mu.Lock()
	a.stopping = true
	a.mu.Unlock()
	for _, s := range a.services {
		if s != nil {
			s.Stop()
		}
	}
	for _, s := range a.services {
		if s == nil {
			continue
		}
		select {
		case <-a.stopped:
		case <-work.Done():
		}
	}
	return nil
}

// runMPS drives a service. The end of the agent's work leaves it as it is.
func (a *Agent) runMPS(work context.Context, s MPS) error {
	err := s.Run(work)
	if work.Err() != nil {
		return nil
	}
	a.stopped <- struct{}{}
	return err
}

// limitsOf returns the limits of a share's program. The driver library keeps the memory.
func limitsOf(r *Record) mps.Limits { return mps.Limits{Share: cmp.Or(r.Parts[0].Limit, share.Whole)} }

// joinMPS makes the asking process, which owns the share, a client of MPS. It answers when
// the process may start its program, or after joinWait.
func (a *Agent) joinMPS(r *http.Request) (any, error) {
	p, ok := r.Context().Value(peerKey{}).(peer)
	if !ok {
		return nil, errors.New("the process that asks is not known")
	}
	c, err := a.admit(r.PathValue("id"), p)
	if err != nil {
		return nil, err
	}
	late := time.NewTimer(joinWait)
	defer late.Stop()
	select {
	case <-c.ready:
	case <-late.C:
		return Joined{}, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if c.err != nil {
		return nil, c.err
	}
	if err := a.store(); err != nil { // the next agent must know the client
		return nil, err
	}
	percent := strconv.FormatFloat(float64(c.limits.Share)*100/float64(share.Whole), 'f', -1, 64)
	return Joined{Ready: true, Env: append(a.services[c.gpu].ClientEnv(), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="+percent)}, nil
}

// admit returns the client of a share, a new one at the first call.
func (a *Agent) admit(id string, p peer) (*client, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, err := a.ownLocked(id, p)
	switch {
	case err != nil:
		return nil, err
	case len(a.services) == 0:
		return nil, errors.New("the policy of the agent is not mps")
	case a.stopping || a.closing:
		return nil, errors.New("the agent ends")
	case s.owner == nil || s.owner.ended() || s.record.Owner.PID != int(p.Pid):
		return nil, errors.New("only the process that owns a share joins MPS")
	case s.record.UID != a.config.MPSUser:
		return nil, fmt.Errorf("MPS serves the programs of user %d, not of %d: give the agent another --mps-user", a.config.MPSUser, s.record.UID)
	case s.client != nil:
		return s.client, nil
	}
	err = a.admitLocked(s, limitsOf(&s.record), false)
	return s.client, err
}

// admitLocked admits the owner of a share. A client that runs was admitted before.
func (a *Agent) admitLocked(s *served, l mps.Limits, running bool) error {
	gpu := indexOf(a.config.Broker.GPUs, s.record.Parts[0].GPU)
	if why := a.patients[gpu].missing; why != "" {
		return fmt.Errorf("GPU %s is missing: %s", s.record.Parts[0].GPU, why)
	}
	a.clients++
	c := &client{id: mps.ClientID(a.clients), gpu: gpu, limits: l, ready: make(chan struct{})}
	err := a.services[gpu].Admit(mps.Client{
		ID: c.id, PID: s.record.Owner.PID, Offline: s.record.Offline, Running: running, Limits: c.limits,
	})
	if err != nil {
		return err
	}
	if running {
		c.settle(nil)
	}
	s.client = c
	return nil
}

// restoreClientLocked tells the service of a client that a former agent admitted.
func (a *Agent) restoreClientLocked(s *served) {
	if !s.record.MPS || s.owner == nil || len(a.services) == 0 {
		return
	}
	if err := a.admitLocked(s, limitsOf(&s.record), true); err != nil {
		a.config.Log.Error("client of MPS is not known any more", "share", s.record.ID, "error", err)
	}
}

// leaveLocked tells that the program of a share has ended.
func (a *Agent) leaveLocked(s *served) {
	if c := s.client; c != nil {
		s.client, s.record.MPS = nil, false
		c.settle(errors.New("the process has ended"))
		a.services[c.gpu].Leave(c.id)
	}
}

// resizeClientLocked brings the new size of a share to its client. The service ends an
// offline one, whose user starts it again; an online one keeps what it has.
func (a *Agent) resizeClientLocked(s *served) {
	if c := s.client; c != nil {
		if err := a.services[c.gpu].Resize(c.id, limitsOf(&s.record)); err != nil {
			a.config.Log.Warn("client of MPS keeps its compute", "share", s.record.ID, "error", err)
		}
	}
}

// notice does what the service of a GPU says.
func (a *Agent) notice(gpu int, n mps.Notice) {
	if n.Kind == mps.Changed {
		return // the service logs it
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.shares {
		if s.client != nil && s.client.id == n.Client && s.client.gpu == gpu {
			a.noticeLocked(s, n)
			return
		}
	}
}

func (a *Agent) noticeLocked(s *served, n mps.Notice) {
	c := s.client
	switch n.Kind {
	case mps.Go:
		s.record.MPS = true
		c.limits = limitsOf(&s.record) // they may have changed while it waited
		c.settle(nil)
	case mps.Refused:
		s.client = nil
		if n.Reason != mps.ReasonLate {
			c.settle(errors.New(n.Reason.String()))
			return
		}
		// It was to start, and has no context yet. Its environment has its limits, and the
		// service must know it when a fault ends all clients.
		if err := a.admitLocked(s, c.limits, true); err != nil {
			a.config.Log.Warn("program is no client of MPS", "share", s.record.ID, "error", err)
			return
		}
		a.resizeClientLocked(s)
	case mps.End:
		a.config.Log.Info("program is to end", "share", s.record.ID, "pid", n.PID, "reason", n.Reason.String(), "force", n.Force)
		a.endClientLocked(s, n)
	case mps.Joined, mps.Changed:
	}
}

// endClientLocked asks the processes of a share to end: by the driver library, which waits
// for the kernels in flight, or by SIGTERM for a program without it.
func (a *Agent) endClientLocked(s *served, n mps.Notice) {
	sig := unix.SIGTERM
	if n.Force {
		sig = unix.SIGKILL
	} else {
		a.broker.Evict(a.now(), s.record.ID, n.Reason.String(), mpsGrace)
		a.flushLocked()
	}
	if s.owner == nil || !n.Force && a.watches[n.PID] != nil {
		return
	}
	if err := s.owner.signal(sig); err != nil && !errors.Is(err, unix.ESRCH) {
		a.config.Log.Warn("program of a share does not get its signal", "share", s.record.ID, "signal", sig.String(), "error", err)
	}
}

// checkMPS refuses shares that MPS cannot serve.
func (a *Agent) checkMPS(gpus int) error {
	if a.config.MPS != nil && gpus > 1 {
		return fmt.Errorf("%d GPUs: with the policy mps a share has one, because each GPU has an MPS daemon of its own, and a program is a client of one: "+
			"run a program for each GPU, or the agent with another policy", gpus)
	}
	return nil
}
