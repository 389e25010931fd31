package opencl

import "sync"

// maxSaid bounds what is kept of a process's standard error, in bytes.
const maxSaid = 512

// tail keeps the last bytes that were written: a platform that ends its process says why.
type tail struct {
	mu   sync.Mutex // guards text
	text []byte
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p[max(0, len(p)-maxSaid):]...)
	t.text = append(t.text[:0], t.text[max(0, len(t.text)-maxSaid):]...)
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
