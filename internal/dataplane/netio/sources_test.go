package netio

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/dxpu-project/dxpu/internal/rawio/reader"
)

// source has one message.
type source struct {
	due, has bool
	attended int
}

func (s *source) Due() bool { return s.due }
func (s *source) Attend()   { s.attended++ }
func (s *source) Poll() bool {
	had := s.has
	s.due, s.has = false, false
	return had
}

// A reader that finds no datagram looks at the sources whose answers are due.
func TestReaderPollsSources(t *testing.T) {
	f, err := Open(Config{Paths: []PathConfig{{Listen: "127.0.0.1:0"}}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer f.closeSockets()
	idle, busy := &source{has: true}, &source{due: true, has: true}
	f.Poll(idle)
	f.Poll(busy)
	conn := f.paths[0].conn
	in := &input{fabric: f, path: f.paths[0], conn: conn, reader: conn.NewReader()}
	if !in.Expects() {
		t.Error("an answer is due, and the reader does not expect it")
	}
	if err := in.Receive(false); err != nil || busy.has {
		t.Errorf("the message of the source is left: %v", err)
	}
	if !idle.has {
		t.Error("a source without a due answer was polled")
	}
	if in.Expects() {
		t.Error("no answer is due, and the reader expects one")
	}
	if err := in.Receive(false); !errors.Is(err, reader.ErrNothing) {
		t.Errorf("nothing came: %v", err)
	}
	if err := in.Receive(true); !errors.Is(err, reader.ErrNothing) || busy.attended != 1 {
		t.Errorf("before it slept the reader told the source %d times: %v", busy.attended, err)
	}
}
