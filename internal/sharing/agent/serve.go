//go:build linux

package agent

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/gate"
	"github.com/dxpu-project/dxpu/share"
)

// listenControl opens the control socket, for root and a group.
func (a *Agent) listenControl() (*net.UnixListener, error) {
	path := filepath.Join(a.config.Dir, ControlName)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	mode := os.FileMode(0o600)
	if a.config.Group >= 0 {
		mode = 0o660
		err = os.Chown(path, -1, a.config.Group)
	}
	if err = errors.Join(err, os.Chmod(path, mode)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

type peerKey struct{}

// serveControl serves the control socket until the context ends.
func (a *Agent) serveControl(ctx context.Context, l *net.UnixListener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/gpus", answer(func(*http.Request) (any, error) { return a.gpus(), nil }))
	mux.HandleFunc("POST /v1/gpus/{name}/repair", answer(a.repair))
	mux.HandleFunc("GET /v1/shares", answer(func(*http.Request) (any, error) { return a.Shares(), nil }))
	mux.HandleFunc("POST /v1/shares", answer(a.create))
	mux.HandleFunc("PATCH /v1/shares/{id}", answer(a.resize))
	mux.HandleFunc("POST /v1/shares/{id}/owner", answer(a.adopt))
	mux.HandleFunc("POST /v1/shares/{id}/mps", answer(a.joinMPS))
	mux.HandleFunc("DELETE /v1/shares/{id}", answer(a.end))
	mux.HandleFunc("POST /v1/leases/{id}/enter", answer(a.enterLease))
	mux.HandleFunc("POST /v1/shares/{id}/hold", answer(func(r *http.Request) (any, error) { return a.hold(r, true) }))
	mux.HandleFunc("POST /v1/shares/{id}/resume", answer(func(r *http.Request) (any, error) { return a.hold(r, false) }))
	srv := &http.Server{
		Handler: http.MaxBytesHandler(mux, 1<<20), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second,
		WriteTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(a.config.Log.Handler(), slog.LevelWarn),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			p, err := peerOf(c.(*caller).UnixConn)
			p.process.close()
			if err != nil {
				return ctx
			}
			return context.WithValue(ctx, peerKey{}, p)
		},
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := srv.Serve(newCallers(l, a.config.Log)); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("control socket: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		// The calls under way end before the next agent may have the state file.
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if srv.Shutdown(last) != nil {
			return srv.Close()
		}
		return nil
	})
	return g.Wait()
}

func answer(f func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := f(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
}

// gpus returns the GPUs with the room that they have.
func (a *Agent) gpus() []GPU {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := []GPU{}
	for i, g := range a.config.Broker.GPUs {
		if !a.visibleLocked(i) {
			continue
		}
		memory, compute := a.broker.Left(i)
		state, why, until := a.stateLocked(i)
		out = append(out, GPU{
			State: state, Reason: why, Until: until,
			Name: g.Name, Model: g.Model, UUID: UUIDText(g.UUID), Memory: g.Device.Memory, SMs: g.Device.SMs, Free: memory, Compute: int64(compute),
		})
	}
	for _, name := range slices.Sorted(maps.Keys(a.config.Missing)) {
		if indexOf(a.config.Broker.GPUs, name) < 0 {
			out = append(out, GPU{Name: name, State: "missing", Reason: a.config.Missing[name]})
		}
	}
	return out
}

// UUIDText returns a UUID as NVIDIA writes it, "" if it is not known.
func UUIDText(u [16]byte) string {
	if u == [16]byte{} {
		return ""
	}
	h := hex.EncodeToString(u[:])
	return "GPU-" + h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// Shares returns the shares with their processes.
func (a *Agent) Shares() []Share {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sharesLocked()
}

func (a *Agent) sharesLocked() []Share {
	out := []Share{}
	for _, st := range a.broker.Status() {
		if s := a.shares[st.ID]; s != nil {
			out = append(out, a.report(s, &st))
		}
	}
	return out
}

func (a *Agent) report(s *served, st *broker.Status) Share {
	out := Share{
		ID: st.ID, Class: st.Class.String(), Used: st.Used,
		Launches: st.Launches, GPUTime: seconds(st.GPUTime), State: "ready", Evicted: st.Evicted, Counts: Counts(st.Counts),
		UID: s.record.UID, Socket: SocketPath(a.config.Dir, st.ID), Parts: []GPUPart{}, Processes: []Process{},
		MPS: a.config.MPS != nil, Stale: s.client != nil && s.client.limits != limitsOf(&s.record),
	}
	out.Policy, out.Unlimited = a.config.Broker.Policy, !a.keepsCompute(s)
	if s.record.Owner != nil {
		out.Owner = s.record.Owner.PID
	}
	if l := s.record.lease(); l != nil {
		out.Lease = l.Lease
	}
	switch {
	case st.Ending:
		out.State = "ending"
	case st.Held:
		out.State = "held"
	}
	a.reportParts(&out, s, st)
	if !slices.ContainsFunc(out.Parts, func(p GPUPart) bool { return p.Missing == "" }) && !st.Ending {
		out.State = "missing"
	}
	for _, p := range st.Processes {
		out.Processes = append(out.Processes, Process{
			PID: p.PID, Connected: p.Connected, Memory: p.Memory, Launches: p.Launches, GPUTime: seconds(p.GPUTime), Waiting: p.Waiting, Wrong: p.Wrong, Failures: p.Failures,
		})
	}
	return out
}

// keepsCompute reports whether anything holds a share to its compute: the gate of the policy,
// or MPS, once the program of the share has joined it. The agent sets up neither MIG nor streams.
func (a *Agent) keepsCompute(s *served) bool {
	if a.config.MPS != nil {
		return s.client != nil
	}
	info, err := share.Find(a.config.Broker.Policy)
	return err == nil && info.Limits && !gate.Hardware(info.Name)
}

// reportParts reports the GPUs of a share, in the order of its record, which is the user's.
func (a *Agent) reportParts(out *Share, s *served, st *broker.Status) {
	for i := range s.record.Parts {
		p := &s.record.Parts[i]
		k := slices.IndexFunc(st.Parts, func(q broker.PartStatus) bool { return a.config.Broker.GPUs[q.GPU].Name == p.GPU })
		if k < 0 {
			continue
		}
		q := &st.Parts[k]
		part := GPUPart{
			GPU: p.GPU, Memory: q.Memory, Used: q.Used, Compute: int64(q.Compute), Limit: int64(q.Limit), Leaving: q.Leaving, Users: q.Users,
			Missing: a.patients[q.GPU].missing, Short: p.short(q.Memory),
		}
		if p.Lease != nil {
			part.Binding = p.Lease.ID
		}
		out.Parts = append(out.Parts, part)
		if q.Leaving {
			continue
		}
		if len(out.GPUs) == 0 {
			out.Memory, out.Compute, out.Limit = q.Memory, int64(q.Compute), int64(q.Limit)
		}
		out.GPUs = append(out.GPUs, p.GPU)
		if u := UUIDText(a.config.Broker.GPUs[q.GPU].UUID); u != "" {
			out.UUIDs = append(out.UUIDs, u)
		}
	}
}

// one returns a share.
func (a *Agent) one(id string) (Share, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.oneLocked(id)
}

func (a *Agent) oneLocked(id string) (Share, error) {
	for _, s := range a.sharesLocked() {
		if s.ID == id {
			return s, nil
		}
	}
	return Share{}, fmt.Errorf("no share %q", id)
}

// asked returns the part of a request and the process that asks.
func asked(r *http.Request) (Part, peer, error) {
	var part Part
	p, ok := r.Context().Value(peerKey{}).(peer)
	if !ok {
		return part, p, errors.New("the process that asks is not known")
	}
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&part); err != nil {
		return part, p, fmt.Errorf("request: %w", err)
	}
	return part, p, nil
}

func (a *Agent) create(r *http.Request) (any, error) {
	part, p, err := asked(r)
	if err != nil {
		return nil, err
	}
	if a.config.Pool != "" {
		return nil, fmt.Errorf("the manager at %s divides the GPUs of this machine: make a lease, and run the program in it", a.config.Pool)
	}
	if err := part.check(a.count()); err != nil {
		return nil, err
	}
	if err := a.checkMPS(part.count()); err != nil {
		return nil, err
	}
	record := Record{ID: part.ID, Offline: part.Offline, UID: int(p.Uid), GID: int(p.Gid)}
	if part.Owned {
		if part.Owner == 0 {
			record.Owner, err = p.stamp()
		} else {
			record.Owner, err = stampOf(part.Owner)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := a.add(&record, &part); err != nil {
		return nil, err
	}
	if err := a.store(); err != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.broker.Abandon(a.now(), record.ID)
		a.flushLocked()
		return nil, fmt.Errorf("the share is not made, because the state is not written: %w", err)
	}
	return a.one(record.ID)
}

func (a *Agent) add(r *Record, part *Part) error {
	a.enter()
	defer a.mu.Unlock()
	if a.closing {
		return errors.New("the agent ends")
	}
	for r.ID == "" {
		a.number++
		if id := fmt.Sprintf("s-%d", a.number); a.shares[id] == nil {
			r.ID = id
		}
	}
	a.chooseLocked(r, part)
	if err := a.openLocked(r, false); err != nil {
		return err
	}
	a.flushLocked()
	return nil
}

// own returns a share that the asking user may change: root all, others their own.
func (a *Agent) ownLocked(id string, p peer) (*served, error) {
	s := a.shares[id]
	if s == nil {
		return nil, fmt.Errorf("no share %q", id)
	}
	if p.Uid != 0 && int(p.Uid) != os.Getuid() && int(p.Uid) != s.record.UID {
		return nil, fmt.Errorf("share %q belongs to user %d", id, s.record.UID)
	}
	return s, nil
}

// change does something to a share of the asking user, and writes the state.
func (a *Agent) change(r *http.Request, f func(s *served) error) error {
	p, ok := r.Context().Value(peerKey{}).(peer)
	if !ok {
		return errors.New("the process that asks is not known")
	}
	a.enter()
	s, err := a.ownLocked(r.PathValue("id"), p)
	if err == nil {
		err = f(s)
		a.flushLocked()
	}
	a.mu.Unlock()
	if err != nil {
		return err
	}
	if err := a.store(); err != nil {
		signal(a.save) // until it is written
		return fmt.Errorf("the change holds until the agent ends, because the state is not written; the agent tries again: %w", err)
	}
	return nil
}

func (a *Agent) hold(r *http.Request, held bool) (any, error) {
	return nil, a.change(r, func(s *served) error {
		s.record.Held = held
		return a.broker.Hold(a.now(), s.record.ID, held)
	})
}

func (a *Agent) end(r *http.Request) (any, error) {
	grace := defaultGrace
	if text := r.URL.Query().Get("grace"); text != "" {
		var err error
		if grace, err = time.ParseDuration(text); err != nil || grace < 0 || grace > maxGrace {
			return nil, fmt.Errorf("grace %q: want 0s to %v", text, maxGrace)
		}
	}
	return nil, a.change(r, func(s *served) error {
		if err := a.leasedLocked(s); err != nil {
			return err
		}
		if s.record.Ending == nil || grace < *s.record.Ending {
			s.record.Ending = &grace
		}
		return a.broker.End(a.now(), s.record.ID, grace)
	})
}

// maxGrace is the longest time that the processes of a share have to end.
const maxGrace = time.Hour
