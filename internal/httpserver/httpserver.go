// Package httpserver makes HTTP servers whose callers may be hostile. It bounds the connections,
// the time and the size of headers, the time of bodies and answers, and the answers that wait for
// their callers, all together and by network.
package httpserver

import (
	stdlog "log"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/dxpu-project/dxpu/internal/loglimit"
)

// Share is the part of a process's descriptors that a listener may use, in eighths.
type Share struct {
	name    string // of the listener
	eighths uint64
	words   string // for the part
}

// The shares of the listeners of a daemon. Its files and its own connections have the rest.
var (
	API   = Share{"the API", 6, "three quarters"}
	Admin = Share{"--admin-listen", 1, "an eighth"}
)

// New returns a server that bounds the cost of unauthenticated callers: a header of 32 KiB within
// 5 s, two minutes without a request, 100 concurrent requests on a connection, and the times and
// sizes of bodies and answers. Its listener is to be one of [Bound] with the same share. It writes
// few of the lines to the log that callers can cause.
func New(h http.Handler, share Share, log *slog.Logger) *http.Server {
	limited := slog.New(loglimit.New(log.Handler()))
	srv := &http.Server{
		Handler:           boundPeers(h, &heldAnswers{most: maxHeld}),
		ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
		Protocols: &http.Protocols{}, ConnContext: withConnection,
		// A frame that is half written keeps the frame that ends its stream waiting.
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: 100, WriteByteTimeout: answerTimeout},
		ErrorLog: stdlog.New(connectionLog{limited, share.name}, "", 0),
	}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetHTTP2(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	return srv
}

// connectionLog writes what a server says of the connections of callers to the daemon's log.
type connectionLog struct {
	log *slog.Logger
	to  string
}

func (l connectionLog) Write(line []byte) (int, error) {
	text := strings.TrimPrefix(strings.TrimSpace(string(line)), "http: ")
	l.log.Warn("a connection to "+l.to+" failed", "why", strings.TrimPrefix(text, "TLS handshake error "))
	return len(line), nil
}
