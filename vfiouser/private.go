package vfiouser

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

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
