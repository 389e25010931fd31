package demo

import (
	"bytes"
	"strings"
	"sync"
)

// progress collects the output of a program and reports when it contains a text.
type progress struct {
	until string        // the text
	seen  chan struct{} // closed when the output contains the text

	mu   sync.Mutex // guards the fields below
	text bytes.Buffer
	done bool
}

func (f *progress) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.text.Write(p)
	if !f.done && bytes.Contains(f.text.Bytes(), []byte(f.until)) {
		f.done = true
		close(f.seen)
	}
	return len(p), nil
}

func (f *progress) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.text.String()
}

// lastLine returns the last line of a program's output.
func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}
