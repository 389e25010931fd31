package manager

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"connectrpc.com/connect"
)

// explainRefusals adds a text to the answers to requests that are no calls of the API, which connect
// refuses with a status alone, and refuses requests that are too large with their own status.
func explainRefusals(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > maxRequest && !strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			refuseSize(w, r)
			return
		}
		next.ServeHTTP(&refusalWriter{w, r}, r)
	})
}

// maxDiscarded bounds what is read of a body that is too large, in bytes: a client that is still
// sending when the connection closes may not see the answer.
const maxDiscarded = 4 * maxRequest

// refuseSize answers a request whose body is too large.
func refuseSize(w http.ResponseWriter, r *http.Request) {
	_, _ = io.CopyN(io.Discard, r.Body, maxDiscarded)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusRequestEntityTooLarge)
	_ = json.NewEncoder(w).Encode(map[string]string{
		"code":    connect.CodeResourceExhausted.String(),
		"message": fmt.Sprintf("the request has %d bytes, and the manager takes at most %d (4 MiB): send several smaller ones", r.ContentLength, maxRequest),
	}) // the caller may have gone
}

// refusalWriter writes a text after a status that connect sends without one.
type refusalWriter struct {
	http.ResponseWriter
	r *http.Request
}

// WriteHeader implements [http.ResponseWriter].
func (w *refusalWriter) WriteHeader(status int) {
	text := ""
	switch {
	case status == http.StatusMethodNotAllowed:
		text = fmt.Sprintf("%s is called with %s, not with %s", w.r.URL.Path, w.Header().Get("Allow"), w.r.Method)
	case status == http.StatusUnsupportedMediaType && w.r.Method == http.MethodGet:
		text = "a GET has its message in the query: add ?encoding=json&message={}, escaped, or send a POST"
	case status == http.StatusUnsupportedMediaType:
		send := "application/json"
		if stream := "application/connect+json"; strings.Contains(w.Header().Get("Accept-Post"), stream) {
			send = stream + ", as a stream: five bytes, a zero and the length, before each message"
		}
		text = fmt.Sprintf("the Content-Type %q is none of this call: send JSON with %s", w.r.Header.Get("Content-Type"), send)
	default:
		w.ResponseWriter.WriteHeader(status)
		return
	}
	http.Error(w.ResponseWriter, text, status)
}

// Flush implements [http.Flusher], which streams need.
func (w *refusalWriter) Flush() {
	_ = http.NewResponseController(w.ResponseWriter).Flush() // as a Flusher, which returns no error
}

// Unwrap is for [http.ResponseController].
func (w *refusalWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
