package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// deed is what a flaky server does with a request for a table.
type deed int

const (
	answers deed = iota
	drops        // closes the connection
	hangs        // until the client gives up
	stops        // says that it stops: UNAVAILABLE
	expires      // DEADLINE_EXCEEDED
	denies       // PERMISSION_DENIED
)

// flaky is both a manager with an empty pool and a proxy. A test decides what it does.
type flaky struct {
	url   string
	does  func(n int) deed // with the request n, from 1
	asked atomic.Int64     // requests for a table
	hung  chan struct{}    // has an element for each request that hangs
}

func newFlaky(t *testing.T, does func(n int) deed) *flaky {
	t.Helper()
	f := &flaky{does: does, hung: make(chan struct{}, 16)}
	mux := http.NewServeMux()
	mux.Handle(dxpuv1connect.NewPoolServiceHandler(emptyPool{}))
	mux.HandleFunc("GET /slots", func(w http.ResponseWriter, _ *http.Request) {
		at := time.Duration(f.asked.Load())
		_ = json.NewEncoder(w).Encode(report(at*time.Second, 1000*uint64(at)))
	})
	srv := httptest.NewServer(f.before(mux))
	t.Cleanup(srv.Close)
	f.url = srv.URL
	return f
}

// emptyPool is the API of a pool without nodes.
type emptyPool struct {
	dxpuv1connect.UnimplementedPoolServiceHandler
}

func (emptyPool) GetPool(context.Context, *connect.Request[dxpuv1.GetPoolRequest]) (*connect.Response[dxpuv1.GetPoolResponse], error) {
	return connect.NewResponse(&dxpuv1.GetPoolResponse{Pool: &dxpuv1.Pool{}}), nil
}

func (emptyPool) ListLeases(context.Context, *connect.Request[dxpuv1.ListLeasesRequest]) (*connect.Response[dxpuv1.ListLeasesResponse], error) {
	return connect.NewResponse(&dxpuv1.ListLeasesResponse{}), nil
}

func (emptyPool) ListHosts(context.Context, *connect.Request[dxpuv1.ListHostsRequest]) (*connect.Response[dxpuv1.ListHostsResponse], error) {
	return connect.NewResponse(&dxpuv1.ListHostsResponse{}), nil
}

// inTurn returns a function for newFlaky: the last deed is repeated.
func inTurn(deeds ...deed) func(int) deed {
	return func(n int) deed { return deeds[min(n, len(deeds))-1] }
}

func (f *flaky) before(next http.Handler) http.Handler {
	codes := map[deed]connect.Code{stops: connect.CodeUnavailable, expires: connect.CodeDeadlineExceeded, denies: connect.CodePermissionDenied}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		does := answers
		if r.URL.Path == "/slots" || r.URL.Path == dxpuv1connect.PoolServiceGetPoolProcedure {
			does = f.does(int(f.asked.Add(1)))
		}
		switch does {
		case answers:
			next.ServeHTTP(w, r)
		case hangs:
			_, _ = io.Copy(io.Discard, r.Body) // the context ends with the connection once the body has been read
			f.hung <- struct{}{}
			<-r.Context().Done()
		case drops:
			panic(http.ErrAbortHandler)
		default:
			if r.URL.Path == "/slots" {
				http.Error(w, "not for you", http.StatusForbidden)
				return
			}
			_ = connect.NewErrorWriter().Write(w, r, connect.NewError(codes[does], errors.New("not now")))
		}
	})
}

// runTop runs "dxpu top" without a terminal.
func runTop(args string) (code int, stdout, stderr string) {
	var out, errOut bytes.Buffer
	code = Main(strings.Fields("top --interval 1ms "+args), strings.NewReader(""), &out, &errOut)
	return code, out.String(), errOut.String()
}

// Once the manager or the proxy has answered, dxpu top goes on while it does not, and says
// so once. Other errors end it.
func TestTopGoesOn(t *testing.T) {
	t.Setenv("DXPU_ADMIN", "")
	for _, tc := range []struct {
		name, flags string
		deeds       []deed
		table       string // is in each table
		stderr      string
		code        int
	}{
		{
			"stopping", "--manager",
			[]deed{answers, stops, stops, answers, denies},
			"  hosts 0/0  ",
			"waiting: the manager is unavailable: not now\nthe manager answers\n", exitRefused,
		},
		{
			"slow", "--manager",
			[]deed{answers, expires, expires, answers, denies},
			"  hosts 0/0  ",
			"waiting: the manager has not answered for 10s\nthe manager answers\n", exitRefused,
		},
		{
			"killed", "--manager",
			[]deed{answers, drops, drops, answers, denies},
			"  hosts 0/0  ",
			"waiting: the manager is unavailable: it closed the connection\nthe manager answers\n", exitRefused,
		},
		{
			"JSON", "--json --manager",
			[]deed{answers, stops, stops, answers, denies},
			`"hosts":0,`,
			"waiting: the manager is unavailable: not now\nthe manager answers\n", exitRefused,
		},
		{ // the client repeats a GET that a kept connection loses
			"proxy killed", "--admin",
			[]deed{answers, answers, drops, drops, drops, answers, denies},
			"host at ",
			"waiting: the proxy is unavailable: it closed the connection\nthe proxy answers\n", exitFailure,
		},
		{ // the first answer of a proxy gives no table
			"proxy killed early", "--admin",
			[]deed{answers, drops, drops, drops, answers, answers, denies},
			"host at ",
			"waiting: the proxy is unavailable: it closed the connection\nthe proxy answers\n", exitFailure,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFlaky(t, inTurn(tc.deeds...))
			code, stdout, stderr := runTop(tc.flags + " " + f.url)
			if n := strings.Count(stdout, tc.table); n != 2 {
				t.Errorf("%d tables, want 2:\n%s", n, stdout)
			}
			notices, _, failed := strings.Cut(stderr, "dxpu: error: ")
			if code != tc.code || notices != tc.stderr || !failed {
				t.Errorf("exit code %d, want %d; stderr:\n%s", code, tc.code, stderr)
			}
		})
	}
}

// The first request must be answered, and with --once every request.
func TestTopEndsWithoutAnAnswer(t *testing.T) {
	t.Setenv("DXPU_ADMIN", "")
	for _, tc := range []struct {
		name, flags string
		deeds       []deed
		asked       int64
	}{
		{"the first request", "--manager", []deed{stops, answers}, 1},
		{"the first request is late", "--manager", []deed{expires, answers}, 1},
		{"the first request to a proxy", "--admin", []deed{drops, answers}, 1},
		{"once", "--once --manager", []deed{stops, answers}, 1},
		{"once, a proxy", "--once --admin", []deed{answers, drops, drops, answers}, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFlaky(t, inTurn(tc.deeds...))
			code, stdout, stderr := runTop(tc.flags + " " + f.url)
			if code != exitFailure || stdout != "" || !strings.HasPrefix(stderr, "dxpu: error: ") {
				t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
			}
			if n := f.asked.Load(); n > tc.asked {
				t.Errorf("%d requests, want at most %d", n, tc.asked)
			}
		})
	}
}

// watcher is a person who looks at a terminal with "dxpu top".
type watcher struct {
	keys   *os.File
	screen []byte // all that was drawn
	done   chan int
	stderr bytes.Buffer // of the command, once it has ended
}

func watchTop(t *testing.T, args string) *watcher {
	t.Helper()
	person, program := pty(t)
	w := &watcher{keys: person, done: make(chan int, 1)}
	go func() {
		w.done <- Main(strings.Fields("top --interval 1ms "+args), program, program, &w.stderr)
	}()
	return w
}

// until reads the terminal until ok holds for the last complete drawing.
func (w *watcher) until(t *testing.T, ok func(drawing string) bool) {
	t.Helper()
	const home, end = "\x1b[H", "\x1b[J"
	buf := make([]byte, 4096)
	for {
		if whole := strings.LastIndex(string(w.screen), end); whole >= 0 {
			all := string(w.screen[:whole])
			if ok(all[strings.LastIndex(all, home)+len(home):]) {
				return
			}
		}
		n, err := w.keys.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		w.screen = append(w.screen, buf[:n]...)
	}
}

// quit presses q, and waits for the end of the command, whose output it reads.
func (w *watcher) quit(t *testing.T) {
	t.Helper()
	if _, err := w.keys.WriteString("q"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	for !bytes.HasSuffix(w.screen, []byte("\x1b[?25h")) {
		n, err := w.keys.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		w.screen = append(w.screen, buf[:n]...)
	}
	if code := <-w.done; code != exitOK || w.stderr.Len() > 0 {
		t.Errorf("exit code %d, stderr %q", code, w.stderr.String())
	}
}

// On a terminal the notice stands above the last table, and goes with the next answer.
func TestTopGoesOnOnATerminal(t *testing.T) {
	t.Setenv("DXPU_ADMIN", "")
	for _, tc := range []struct{ name, flags, table, notice string }{
		{"pool", "--manager", "  hosts 0/0  ", "waiting: the manager is unavailable: it closed the connection\x1b[K\r\n"},
		{"proxy", "--admin", "host at ", "waiting: the proxy is unavailable: it closed the connection\x1b[K\r\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var down atomic.Bool
			f := newFlaky(t, func(int) deed {
				if down.Load() {
					return drops
				}
				return answers
			})
			w := watchTop(t, tc.flags+" "+f.url)
			good := func(drawing string) bool {
				return strings.Contains(drawing, tc.table) && !strings.Contains(drawing, "waiting: ")
			}
			w.until(t, good)
			down.Store(true)
			w.until(t, func(drawing string) bool {
				table, noted := strings.CutPrefix(drawing, tc.notice)
				return noted && good(table)
			})
			down.Store(false)
			w.until(t, good)
			w.quit(t)
		})
	}
}

// q ends the command while a request hangs.
func TestTopQuitsWhileARequestHangs(t *testing.T) {
	t.Setenv("DXPU_ADMIN", "")
	for _, tc := range []struct {
		name, flags string
		deeds       []deed
	}{
		{"the first request", "--manager", []deed{hangs}},
		{"a later request", "--manager", []deed{answers, hangs}},
		{"a proxy", "--admin", []deed{answers, answers, hangs}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFlaky(t, inTurn(tc.deeds...))
			w := watchTop(t, tc.flags+" "+f.url)
			<-f.hung
			w.quit(t)
			if n := f.asked.Load(); n != int64(len(tc.deeds)) {
				t.Errorf("%d requests, want %d", n, len(tc.deeds))
			}
		})
	}
}
