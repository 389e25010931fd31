package client

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
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
		if after := time.Since(begun); !errors.Is(err, errSilent) || after > 10*time.Second {
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
