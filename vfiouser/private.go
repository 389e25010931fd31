package vfiouser

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// asker asks the kernel about the process of a peer, for one connection after the other. The
// question may wait for locks of the process, which it holds for as long as it likes, for
// example while a process of its own flushes a file of a FUSE file system at an execve(2).
type asker struct{ busy atomic.Bool }

var errNoAnswer = fmt.Errorf("the mappings of the VMM cannot be read: %w", unix.ETIMEDOUT)

// ask returns the answer, or errNoAnswer after a time limit. Until a late answer has come, there
// is no further question.
func (a *asker) ask(limit time.Duration, question func() error) error {
	if !a.busy.CompareAndSwap(false, true) {
		return errNoAnswer
	}
	answer := make(chan error, 1)
	go func() { // not waited for beyond the limit: nothing ends the question
		err := question()
		a.busy.Store(false)
		answer <- err
	}()
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case err := <-answer:
		return err
	case <-timeout.C:
		return errNoAnswer
	}
}

// checkShared returns an error if the process has mapped a file, but only privately:
// its guest's writes do not reach the file then, and the device's do not reach the
// guest. QEMU passes a descriptor of such memory (share=off) like any other. A process
// whose mappings cannot be read, or which has not mapped the file, is believed.
func checkShared(pid int, id fileID) error {
	if pid == 0 {
		return nil
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil
	}
	defer f.Close()
	if private, shared := findMappings(f, id); private && !shared {
		return fmt.Errorf("the VMM maps its memory privately: give it share=on: %w", unix.EINVAL)
	}
	return nil
}

// findMappings looks for mappings of a file in a list as of /proc/PID/maps
// (proc_pid_maps(5)):
//
//	7f1c80000000-7f1cc0000000 rw-s 00000000 00:01 2049  /memfd:mem (deleted)
func findMappings(maps io.Reader, id fileID) (private, shared bool) {
	device := fmt.Sprintf("%02x:%02x", unix.Major(id.device), unix.Minor(id.device))
	inode := fmt.Sprint(id.inode)
	lines := bufio.NewReader(maps)
	for {
		line, err := lines.ReadString('\n')
		if f := strings.Fields(line); len(f) >= 5 && f[3] == device && f[4] == inode && len(f[1]) == 4 {
			private = private || f[1][3] == 'p'
			shared = shared || f[1][3] == 's'
		}
		if err != nil {
			return private, shared
		}
	}
}
