//go:build linux

package agent

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// maxCgroups bounds what is read of the cgroups of a process: some lines with a path each.
const maxCgroups = 64 << 10

// isFrozen reports whether the freezer of a cgroup keeps a process from running, as that of a
// container that is paused. Its state in /proc/PID/stat does not say so: it looks asleep. Root is
// the folder with proc and sys, "/" for this machine.
func isFrozen(root string, pid int) bool {
	for line := range strings.Lines(readSome(filepath.Join(root, fmt.Sprintf("proc/%d/cgroup", pid)))) {
		_, rest, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ":") // ID:controllers:path, cgroups(7)
		controllers, path, ok2 := strings.Cut(rest, ":")
		if !ok || !ok2 || strings.Contains(path, "/..") { // outside of the agent's cgroup namespace
			continue
		}
		mounts := filepath.Join(root, "sys/fs/cgroup")
		switch controllers {
		case "": // version 2, alone or beside version 1
			for _, mount := range []string{"", "unified"} {
				events := readSome(filepath.Join(mounts, mount, path, "cgroup.events"))
				if strings.Contains("\n"+events, "\nfrozen 1\n") {
					return true
				}
			}
		case "freezer":
			if readSome(filepath.Join(mounts, "freezer", path, "freezer.state")) == "FROZEN\n" {
				return true
			}
		default:
		}
	}
	return false
}

// readSome returns the beginning of a file, nothing if it cannot be read.
func readSome(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxCgroups))
	if err != nil {
		return ""
	}
	return string(text)
}
