package nvidia

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/mps"
)

// maxSocketPath is the longest path of a Unix socket, sun_path in <sys/un.h> without
// its terminator. The control daemon fails without a word beyond it.
const maxSocketPath = 107

// askAgain is the time until the control program is tried again after it could not be run.
const askAgain = 2 * time.Second

// MPSConfig describes the Multi-Process Service of one GPU.
type MPSConfig struct {
	UUID     string // of the GPU, as in GPU-…
	Dir      string // the service's own folder, for its pipes and logs
	Programs Programs
	UID      uint32     // user of the server and of its clients
	Others   mps.Limits // of clients that were not admitted; none: everything
	Memory   int64      // bytes of the GPU
	// Notify takes each notice, in order, from the goroutine of Run.
	Notify func(mps.Notice)
	Logger *slog.Logger
}

// MPS drives the Multi-Process Service of one GPU. A service that runs already is
// taken over, and goes on when Run ends without Stop: an agent that dies does not end
// the workloads.
type MPS struct {
	config MPSConfig
	look   chan struct{} // a step is due now

	mu      sync.Mutex
	machine mps.Machine
	stop    bool
	seen    mps.Seen
}

// NewMPS makes the folders of a service.
func NewMPS(c MPSConfig) (*MPS, error) {
	if c.Notify == nil {
		c.Notify = func(mps.Notice) {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if s := filepath.Join(c.Dir, "pipe", "control"); len(s) > maxSocketPath {
		return nil, fmt.Errorf("mps: the socket's path %s has %d bytes, more than the %d of a Unix socket: choose a shorter folder", s, len(s), maxSocketPath)
	}
	s := &MPS{config: c, look: make(chan struct{}, 1)}
	for _, d := range []string{s.pipes(), s.logs()} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *MPS) pipes() string { return filepath.Join(s.config.Dir, "pipe") }
func (s *MPS) logs() string  { return filepath.Join(s.config.Dir, "log") }

// ClientEnv returns the environment that leads a client to this service.
func (s *MPS) ClientEnv() []string {
	return []string{"CUDA_MPS_PIPE_DIRECTORY=" + s.pipes(), "CUDA_MPS_LOG_DIRECTORY=" + s.logs()}
}

// env is the environment of the daemon. The GPU is named by its UUID: with an index
// the daemon and its clients would count differently.
func (s *MPS) env() []string {
	return append(s.ClientEnv(), "CUDA_VISIBLE_DEVICES="+s.config.UUID)
}

// Admit asks for a new client; the notice Go or Refused follows.
func (s *MPS) Admit(c mps.Client) error {
	return s.change(func(now time.Time) error { return s.machine.Admit(now, c) })
}

// Leave tells that a client's process has ended.
func (s *MPS) Leave(id mps.ClientID) {
	_ = s.change(func(now time.Time) error { s.machine.Leave(now, id); return nil })
}

// Resize changes the limits of a client, as mps.Machine does.
func (s *MPS) Resize(id mps.ClientID, l mps.Limits) error {
	return s.change(func(now time.Time) error { return s.machine.Resize(now, id, l) })
}

// Stop ends the service; Run returns when it has ended.
func (s *MPS) Stop() {
	_ = s.change(func(time.Time) error { s.stop = true; return nil })
}

func (s *MPS) change(f func(now time.Time) error) error {
	s.mu.Lock()
	err := f(time.Now())
	s.mu.Unlock()
	select {
	case s.look <- struct{}{}:
	default:
	}
	return err
}

// MPSStatus is the state of a service.
type MPSStatus struct {
	State   mps.State
	Since   time.Time
	Servers []mps.Server
	Stale   []mps.ClientID // clients with new limits after their next start
}

// Status returns the state.
func (s *MPS) Status() MPSStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	state, since := s.machine.State()
	return MPSStatus{state, since, s.seen.Servers, s.machine.Stale()}
}

// Run drives the service until ctx is done, or until it has stopped after Stop.
func (s *MPS) Run(ctx context.Context) error {
	for {
		seen := s.see(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		s.mu.Lock()
		if seen.Daemon != mps.Unasked {
			s.seen = seen
		}
		want := mps.Want{Run: !s.stop, UID: s.config.UID, Others: s.config.Others, Memory: s.config.Memory}
		actions := s.machine.Step(time.Now(), want, seen)
		notices := s.machine.Notices()
		s.mu.Unlock()
		s.notify(notices)
		for _, a := range actions {
			err := s.do(ctx, a)
			if err != nil {
				s.config.Logger.Warn("MPS", "gpu", s.config.UUID, "do", a.String(), "err", err)
			}
			s.mu.Lock()
			s.machine.Done(a, err)
			s.mu.Unlock()
			if err != nil {
				break
			}
		}
		s.mu.Lock()
		state, _ := s.machine.State()
		ended := s.stop && state == mps.Stopped
		wake := s.machine.Wake()
		if seen.Daemon == mps.Unasked {
			wake = time.Now().Add(askAgain)
		}
		s.mu.Unlock()
		if ended {
			return nil
		}
		s.rest(ctx, wake)
	}
}

// rest waits for a time, or for a change.
func (s *MPS) rest(ctx context.Context, until time.Time) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-s.look:
	}
}

func (s *MPS) notify(notices []mps.Notice) {
	for _, n := range notices {
		if n.Kind == mps.Changed {
			s.config.Logger.Info("MPS", "gpu", s.config.UUID, "state", n.State.String())
		}
		s.config.Notify(n)
	}
}

// ask gives a command to the control daemon.
func (s *MPS) ask(ctx context.Context, line string) (string, error) {
	return command{
		name: s.config.Programs.control(), env: s.env(), stdin: line + "\n", limit: 2 * runLimit,
	}.run(ctx)
}

// see asks the daemon what there is. Answers that make no sense are none. While the control program
// cannot be run, as when the machine has no process left, it looks only whether the daemon is there:
// the clients go on, except those that are to end.
func (s *MPS) see(ctx context.Context) (seen mps.Seen) {
	text, err := s.ask(ctx, mps.ListServers)
	if mps.NoDaemon(text) {
		return mps.Seen{}
	}
	if exit := (*ExitError)(nil); err != nil && !errors.As(err, &exit) && !errors.Is(err, ErrTimeout) {
		s.config.Logger.Warn("MPS", "gpu", s.config.UUID, "err", err)
		return s.found()
	}
	seen.Daemon = mps.Answers
	pids, err := parsed(text, err, mps.ParsePIDs)
	for _, pid := range pids {
		var server mps.Server
		if server, err = s.seeServer(ctx, pid); err != nil {
			break
		}
		seen.Servers = append(seen.Servers, server)
	}
	if err != nil {
		s.config.Logger.Warn("MPS", "gpu", s.config.UUID, "err", err)
		return mps.Seen{Daemon: mps.Mute}
	}
	return seen
}

// found looks for the daemon among the processes. A daemon counts as absent only if all of them could
// be read, because the clients of an absent one must end.
func (s *MPS) found() (seen mps.Seen) {
	if err := eachByPipes(s.pipes(), func(*os.Process) error { seen.Daemon = mps.Unasked; return nil }); err != nil {
		s.config.Logger.Warn("MPS", "gpu", s.config.UUID, "err", err)
		seen.Daemon = mps.Unasked
	}
	return seen
}

func (s *MPS) seeServer(ctx context.Context, pid int) (server mps.Server, err error) {
	server.PID = pid
	text, err := s.ask(ctx, mps.AskStatus(pid))
	if server.Status, err = parsed(text, err, mps.ParseStatus); err != nil {
		return server, err
	}
	text, err = s.ask(ctx, mps.AskClients(pid))
	server.Clients, err = parsed(text, err, mps.ParsePIDs)
	return server, err
}

func parsed[T any](text string, err error, parse func(string) (T, error)) (T, error) {
	if err != nil {
		var zero T
		return zero, err
	}
	return parse(text)
}

// do carries out an action.
func (s *MPS) do(ctx context.Context, a mps.Action) error {
	switch a.Verb {
	case mps.StartDaemon:
		_, err := command{name: s.config.Programs.control(), args: []string{"-d"}, env: s.env(), limit: runLimit}.run(ctx)
		return err
	case mps.KillDaemon:
		return killByPipes(s.pipes())
	default:
	}
	text, err := s.ask(ctx, a.Command())
	if a.Verb == mps.Quit && mps.NoDaemon(text) {
		return nil
	}
	if err != nil {
		return err
	}
	return a.Check(text)
}
