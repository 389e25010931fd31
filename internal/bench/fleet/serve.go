package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"sync"
	"time"

	"github.com/dxpu-project/dxpu/internal/bench/process"
	"github.com/dxpu-project/dxpu/internal/pool/etcdstore"
	"github.com/dxpu-project/dxpu/internal/pool/manager"
)

// request is a request to the manager's process. One of its fields is set, or Usage
// and Collect.
type request struct {
	Start      *start `json:",omitempty"`
	Restart    bool   `json:",omitempty"` // end the manager and start a new one with the same state
	Usage      bool   `json:",omitempty"`
	Collect    bool   `json:",omitempty"` // collect garbage before Usage
	Profile    string `json:",omitempty"` // file of a CPU profile; the heap profile has the same name with .heap.pprof
	EndProfile bool   `json:",omitempty"`
}

// start configures the manager.
type start struct {
	Token     string
	Dir       string
	Heartbeat time.Duration
}

type reply struct {
	Error string `json:",omitempty"`
	URL   string `json:",omitempty"`
	Usage *Usage `json:",omitempty"`
}

// Usage is the use of resources of the manager's process.
type Usage struct {
	Heap       uint64        `json:"heap"`  // bytes of objects and stacks after garbage collection; 0: not measured
	RSS        uint64        `json:"rss"`   // bytes
	Files      int           `json:"files"` // open, one of each connection
	Goroutines int           `json:"goroutines"`
	Processor  time.Duration `json:"processor_ns"` // so far
	// Share is the number of busy processors.
	Share float64 `json:"processors,omitempty"`
}

// Serve runs in the manager's process: it reads requests, a JSON value each, and
// writes a reply to each, until in ends.
func Serve(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	requests, replies := json.NewDecoder(bufio.NewReader(in)), json.NewEncoder(out)
	s := &server{}
	defer func() { err = errors.Join(err, s.end(), s.endProfile()) }()
	for {
		var q request
		switch err := requests.Decode(&q); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		r, err := s.answer(ctx, q)
		if err != nil {
			r.Error = err.Error()
		}
		if err := replies.Encode(r); err != nil {
			return err
		}
	}
}

// server runs a manager, which can be ended and started again.
type server struct {
	start   start
	memory  manager.MemoryStore
	listen  string // address of the first manager, also of the next ones
	profile *os.File
	ending  func() error // ends the manager; nil: none runs
}

func (s *server) answer(ctx context.Context, q request) (r reply, err error) {
	switch {
	case q.Start != nil:
		s.start, s.listen = *q.Start, "127.0.0.1:0"
		if err = s.begin(ctx); err == nil {
			r.URL = "http://" + s.listen
		}
	case q.Restart:
		if err = s.end(); err == nil {
			err = s.begin(ctx)
		}
	case q.Usage:
		r.Usage, err = usage(q.Collect)
	case q.Profile != "":
		if s.profile, err = os.Create(q.Profile); err == nil {
			err = pprof.StartCPUProfile(s.profile)
		}
	case q.EndProfile:
		err = s.endProfile()
	default:
		err = errors.New("bench: an empty request")
	}
	return r, err
}

func (s *server) endProfile() error {
	if s.profile == nil {
		return nil
	}
	pprof.StopCPUProfile()
	err := s.profile.Close()
	heap, heapErr := os.Create(strings.TrimSuffix(s.profile.Name(), ".pprof") + ".heap.pprof")
	s.profile = nil
	if heapErr != nil {
		return errors.Join(err, heapErr)
	}
	return errors.Join(err, pprof.WriteHeapProfile(heap), heap.Close())
}

func (s *server) end() error {
	if s.ending == nil {
		return nil
	}
	err := s.ending()
	s.ending = nil
	return err
}

// begin starts a manager and returns when it leads.
func (s *server) begin(ctx context.Context) (err error) {
	leads := make(chan struct{})
	lead := sync.OnceFunc(func() { close(leads) }) // the manager may lose the lead and win it again
	cfg := manager.Config{
		JoinToken: s.start.Token, Open: manager.OpenLoopback, Store: &s.memory, Heartbeat: s.start.Heartbeat,
		OnLead: func(context.Context) error { lead(); return nil },
	}
	if s.start.Heartbeat > 0 {
		cfg.LostAfter = 4 * s.start.Heartbeat
	}
	closeStore := func() error { return nil }
	if s.start.Dir != "" {
		store, err := etcdstore.Open(ctx, etcdstore.Options{Dir: s.start.Dir})
		if err != nil {
			return err
		}
		cfg.Store, closeStore = store, store.Close
	}
	m, err := manager.New(ctx, cfg)
	if err != nil {
		return errors.Join(err, closeStore())
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.listen)
	if err != nil {
		return errors.Join(err, closeStore())
	}
	s.listen = l.Addr().String()
	srv := &http.Server{Handler: m.Handler(), ReadHeaderTimeout: 5 * time.Second, Protocols: &http.Protocols{}, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var failed error
	wg.Go(func() {
		failed = m.Run(ctx)
		cancel() // ends the wait for the lead
	})
	wg.Go(func() { _ = srv.Serve(l) }) // ErrServerClosed, as the listener is ours
	s.ending = func() error {
		cancel()
		err := srv.Close() // nodes see a vanished manager, not an orderly end
		wg.Wait()
		return errors.Join(err, failed, closeStore())
	}
	select {
	case <-leads:
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err(), s.end())
	}
}

// usage measures the process.
func usage(collect bool) (*Usage, error) {
	u := &Usage{Goroutines: runtime.NumGoroutine()}
	if collect {
		debug.FreeOSMemory() // collects garbage, and returns the memory of the peak
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		u.Heap = m.HeapAlloc + m.StackInuse
	}
	var err error
	if u.Processor, err = process.Time(); err != nil {
		return nil, err
	}
	if u.RSS, err = process.Resident(); err != nil {
		return nil, err
	}
	files, err := os.ReadDir("/proc/self/fd")
	u.Files = len(files)
	return u, err
}
