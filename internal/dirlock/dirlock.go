// Package dirlock keeps a directory for one process.
package dirlock

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// HeldError reports that another process has the directory.
type HeldError struct {
	Dir string
	PID int // 0: unknown
}

// Error names the directory and the process.
func (e *HeldError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("%s is used by another process", e.Dir)
	}
	return fmt.Sprintf("%s is used by another process, %d", e.Dir, e.PID)
}

// Lock locks a directory until Close, or the end of the process, against others that lock it by
// the same file in it. The file stays: another process may wait for its lock. Lock does not wait:
// the error is a [HeldError] if another process has the directory.
func Lock(dir, name string) (io.Closer, error) {
	path := filepath.Join(dir, name)
	f, err := tryLock(path)
	if errors.Is(err, errLocked) {
		return nil, &HeldError{dir, holder(path)}
	}
	if err != nil {
		return nil, err
	}
	_, _ = f.WriteAt(fmt.Appendf(nil, "%-10d\n", os.Getpid()), 0) // that fails on a full disk
	return f, nil
}

// errLocked is the error of tryLock if another process has the lock.
var errLocked = errors.New("locked")

// holder returns the ID of the process that has the lock, or 0.
func holder(path string) int {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	var b [16]byte
	n, _ := f.ReadAt(b[:], 0) // a short file is usual
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil || pid < 0 {
		return 0
	}
	return pid
}
