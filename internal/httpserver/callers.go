package httpserver

import (
	"io"
	"net/http"
	"time"
)

const (
	// bodyTimeout is how long a caller may take to send the body of a request, and
	// answerTimeout how long to take a piece of an answer.
	bodyTimeout   = 20 * time.Second
	answerTimeout = time.Minute
)

// boundPeers ends requests whose callers do not send the body, or do not take the answer.
func boundPeers(next http.Handler, held *heldAnswers) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		if r.ProtoMajor == 1 { // the deadline of the connection's last answer
			_ = c.SetWriteDeadline(time.Time{})
		}
		if r.Body != http.NoBody && c.SetReadDeadline(time.Now().Add(bodyTimeout)) == nil {
			r.Body = &peerBody{r.Body, c}
		}
		next.ServeHTTP(&peerWriter{ResponseWriter: w, c: c, r: r, held: held}, r)
		_ = c.SetWriteDeadline(time.Now().Add(answerTimeout)) // of what the server still has
	})
}

// peerBody removes the read deadline once the body has been read: a stream stays open.
type peerBody struct {
	io.ReadCloser
	c *http.ResponseController
}

func (b *peerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		_ = b.c.SetReadDeadline(time.Time{}) // setting it has succeeded before
	}
	return n, err
}

// peerWriter bounds the time of each write. Between them there is no deadline: it would end an
// HTTP/2 stream on which nothing happens.
type peerWriter struct {
	http.ResponseWriter
	c    *http.ResponseController
	r    *http.Request
	held *heldAnswers
	own  bool // the handler has set a deadline
}

func (w *peerWriter) Write(p []byte) (int, error) {
	w.limit(answerTimeout)
	defer w.limit(0)
	if len(p) >= heldFrom {
		defer w.held.enter(peerOf(w.r), len(p), func() { hangUp(w.r) })()
	}
	return w.ResponseWriter.Write(p)
}

// FlushError is for [http.ResponseController].
func (w *peerWriter) FlushError() error {
	w.limit(answerTimeout)
	defer w.limit(0)
	return w.c.Flush()
}

// Flush implements [http.Flusher], which streams need.
func (w *peerWriter) Flush() { _ = w.FlushError() }

// Unwrap is for [http.ResponseController].
func (w *peerWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// SetWriteDeadline is for [http.ResponseController]. A handler's deadline replaces that of each write.
func (w *peerWriter) SetWriteDeadline(at time.Time) error {
	w.own = !at.IsZero()
	return w.c.SetWriteDeadline(at)
}

// limit sets the time for what follows; 0: none.
func (w *peerWriter) limit(d time.Duration) {
	if w.own {
		return
	}
	var at time.Time
	if d > 0 {
		at = time.Now().Add(d)
	}
	_ = w.c.SetWriteDeadline(at) // not all connections have deadlines
}
