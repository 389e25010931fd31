package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
)

// answers is the network: it answers a probe or a call, or nothing until the request is given up.
type answers func(r *http.Request) string

func (f answers) RoundTrip(r *http.Request) (*http.Response, error) {
	text := f(r)
	if text == "" {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
}

func silentClient(t *testing.T, network answers) *http.Client {
	t.Helper()
	us, err := parseURLs([]string{"http://m1", "http://m2"})
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Transport: newLeaderTransport(us, network, "", 0)}
}

// A manager freezes with a call. The call ends, and the next one goes to another manager.
func TestManagerFreezesWithACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var frozen atomic.Bool
		c := silentClient(t, func(r *http.Request) string {
			first, probe := r.URL.Host == "m1", r.URL.Path == "/readyz"
			switch {
			case first && !probe:
				frozen.Store(true)
				return ""
			case first && frozen.Load(), !first && !frozen.Load():
				return ""
			}
			return "of " + r.URL.Host
		})
		begun := time.Now()
		_, err := c.Post("http://any/call", "", strings.NewReader("x"))
		if after := time.Since(begun); !errors.Is(err, ErrSilent) || after > 10*time.Second {
			t.Errorf("%v after %s", err, after)
		}
		if got := post(t.Context(), c, nil); got != "of m2" {
			t.Errorf("the next call: %s", got)
		}
	})
}

// A manager may take its time for an answer, as long as it answers probes, which are few.
func TestSlowAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var probes atomic.Int64
		c := silentClient(t, func(r *http.Request) string {
			if r.URL.Path == "/readyz" {
				probes.Add(1)
			} else {
				time.Sleep(time.Hour)
			}
			return "of " + r.URL.Host
		})
		if got := post(t.Context(), c, nil); !strings.HasPrefix(got, "of m") {
			t.Errorf("got %s", got)
		}
		if n := probes.Load(); n < 60 || n > 70 {
			t.Errorf("%d probes in an hour", n)
		}
	})
}

// stream is a body that brings a text every interval, so often, and then nothing until the
// request ends.
type stream struct {
	ctx      context.Context
	interval time.Duration
	left     int
}

func (s *stream) Read(p []byte) (int, error) {
	if s.left == 0 {
		<-s.ctx.Done()
		return 0, s.ctx.Err()
	}
	s.left--
	if !pause(s.ctx, s.interval) {
		return 0, s.ctx.Err()
	}
	return copy(p, "x"), nil
}

func (*stream) Close() error { return nil }

// streams is a network with one manager: it answers a call with a stream, and probes until it
// freezes.
type streams struct {
	stream stream
	frozen time.Time // zero: never
	probes atomic.Int64
}

func (n *streams) RoundTrip(r *http.Request) (*http.Response, error) {
	res := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r}
	if r.URL.Path != "/readyz" {
		s := n.stream
		s.ctx, res.Body = r.Context(), &s
		return res, nil
	}
	n.probes.Add(1)
	if !n.frozen.IsZero() && !time.Now().Before(n.frozen) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return res, nil
}

// read reads a stream to its end, or for a time.
func (n *streams) read(t *testing.T, most time.Duration) (string, error) {
	t.Helper()
	us, err := parseURLs([]string{"http://m1"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://any/watch", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := newLeaderTransport(us, n, "", 0).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	return string(text), err
}

// A manager freezes with a stream, at once or after hours of silence. The stream ends, with
// the code with which a watch goes on elsewhere.
func TestManagerFreezesWithAStream(t *testing.T) {
	for _, tt := range []struct {
		name          string
		frozen, bound time.Duration
	}{
		{"at once", 5 * time.Second, 15 * time.Second},
		{"after hours", 5 * time.Hour, longestSilence + 10*time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &streams{stream: stream{interval: time.Second, left: 5}, frozen: time.Now().Add(tt.frozen)}
				text, err := n.read(t, 24*time.Hour)
				if after := time.Since(n.frozen); text != "xxxxx" || !errors.Is(err, ErrSilent) || connect.CodeOf(err) != connect.CodeUnavailable || after > tt.bound {
					t.Errorf("%q, %v, %s after the manager froze", text, err, after)
				}
			})
		})
	}
}

// cut is a body whose connection breaks in the middle.
type cut struct{}

func (cut) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func (cut) Close() error { return nil }

// A manager is killed with a stream. A watch goes on elsewhere after the same code.
func TestManagerDiesWithAStream(t *testing.T) {
	b := &body{ReadCloser: cut{}}
	b.ctx, b.cancel = context.WithCancelCause(t.Context())
	if _, err := b.Read(nil); connect.CodeOf(err) != connect.CodeUnavailable || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
	b.cancel(nil)
	if _, err := b.Read(nil); connect.CodeOf(err) == connect.CodeUnavailable {
		t.Errorf("after the caller has ended it: %v", err)
	}
}

// A stream may be silent as long as its manager answers probes, which are few. While it
// brings something there are none.
func TestHealthyStream(t *testing.T) {
	for _, tt := range []struct {
		name        string
		stream      stream
		least, most int64 // probes
	}{
		{"silent", stream{}, 60, 70},
		{"busy", stream{interval: time.Second, left: 3600}, 0, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &streams{stream: tt.stream}
				text, err := n.read(t, time.Hour+time.Second/2)
				if !errors.Is(err, context.DeadlineExceeded) || len(text) != tt.stream.left {
					t.Errorf("%d bytes, %v", len(text), err)
				}
				if p := n.probes.Load(); p < tt.least || p > tt.most {
					t.Errorf("%d probes in an hour", p)
				}
			})
		})
	}
}
