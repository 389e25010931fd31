package web

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"connectrpc.com/connect"

	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// LocalClient returns a function that makes clients of an API in the same process.
// Their calls reach api as if the browser had made them: with its address, its
// certificate, and its Authorization header or the token of its cookie. api decides
// what they may do.
func LocalClient(api http.Handler) func(*http.Request) dxpuv1connect.PoolServiceClient {
	return func(r *http.Request) dxpuv1connect.PoolServiceClient {
		return dxpuv1connect.NewPoolServiceClient(
			&http.Client{Transport: &local{api: api, from: r, credential: credential(r)}}, "http://manager.internal",
			connect.WithAcceptCompression("gzip", nil, nil)) // compression is useless within a process
	}
}

// local is an http.RoundTripper that calls a handler of the same process.
type local struct {
	api        http.Handler
	from       *http.Request
	credential string // value of Authorization; empty: none
}

// RoundTrip implements http.RoundTripper. The request's context ends the handler.
func (l *local) RoundTrip(out *http.Request) (*http.Response, error) {
	in := out.Clone(out.Context())
	in.RequestURI = out.URL.RequestURI()
	in.Host, in.RemoteAddr, in.TLS = l.from.Host, l.from.RemoteAddr, l.from.TLS
	in.Header.Del("Authorization")
	if l.credential != "" {
		in.Header.Set("Authorization", l.credential)
	}
	body, writer := io.Pipe()
	w := &localWriter{header: http.Header{}, body: writer, started: make(chan struct{})}
	go func() {
		var err error
		defer func() {
			if p := recover(); p != nil { // net/http recovers panics of handlers too
				err = fmt.Errorf("web: the API's handler panicked: %v", p)
			}
			w.WriteHeader(http.StatusOK)
			_ = writer.CloseWithError(err)
			_ = in.Body.Close()
		}()
		if in.Body == nil {
			in.Body = http.NoBody
		}
		l.api.ServeHTTP(w, in)
	}()
	select {
	case <-w.started:
	case <-out.Context().Done():
		_ = body.CloseWithError(out.Context().Err())
		return nil, out.Context().Err()
	}
	return &http.Response{
		Status: http.StatusText(w.status), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, Body: body, ContentLength: -1, Request: out,
	}, nil
}

// localWriter is the http.ResponseWriter of a call through local.
type localWriter struct {
	header  http.Header
	body    *io.PipeWriter
	once    sync.Once
	started chan struct{} // closed after status and sent are set
	status  int
	sent    http.Header
}

// Header implements http.ResponseWriter.
func (w *localWriter) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *localWriter) WriteHeader(status int) {
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.started)
	})
}

// Write implements http.ResponseWriter. It blocks until the reader has taken b.
func (w *localWriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(b)
}

// Flush implements http.Flusher.
func (w *localWriter) Flush() { w.WriteHeader(http.StatusOK) }

// credential returns the value of the Authorization header for a request's calls.
func credential(r *http.Request) string {
	if h := r.Header.Get("Authorization"); h != "" {
		return h
	}
	if c, err := r.Cookie(tokenCookie); err == nil && c.Value != "" && !strings.ContainsAny(c.Value, " \t") {
		return "Bearer " + c.Value
	}
	return ""
}
