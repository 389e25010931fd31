package opencl

import (
	"bytes"
	"os"
)

// saidRoom is how much of a process's standard error is kept, and maxSaid how much of its
// end goes into the log, in bytes.
const (
	saidRoom = 64 << 10
	maxSaid  = 512
)

// newSaid returns a file for the standard error of a process: a platform that ends its
// process says why. The file has a fixed size, and the box reads it at the end: a
// program of a tenant that writes without end costs the box nothing.
func newSaid() (*os.File, error) {
	return newMemory("stderr", saidRoom)
}

// lastWords returns the end of what a process wrote.
func lastWords(f *os.File) string {
	b := make([]byte, saidRoom)
	n, _ := f.ReadAt(b, 0) // a part is better than nothing
	b = bytes.TrimRight(b[:n], "\x00")
	return string(b[max(0, len(b)-maxSaid):])
}
