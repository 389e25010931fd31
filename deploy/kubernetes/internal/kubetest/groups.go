package kubetest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// groupRoot has the hierarchies of control groups.
const groupRoot = "/sys/fs/cgroup"

// makeGroups makes the control group of the node in each hierarchy.
func (n *Node) makeGroups(name string) error {
	roots := []string{groupRoot}
	if _, err := os.Stat(filepath.Join(groupRoot, "cgroup.controllers")); err != nil { // version 1
		if roots, err = filepath.Glob(groupRoot + "/*"); err != nil {
			return err
		}
	}
	for _, root := range roots {
		removeStale(root)
		dir := filepath.Join(root, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		n.groups = append(n.groups, dir)
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} { // empty in a new group
			if raw, err := os.ReadFile(filepath.Join(root, file)); err == nil {
				if err := os.WriteFile(filepath.Join(dir, file), raw, 0); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// groupName returns the name of a control group that a process makes.
func groupName(pid int, of string) string { return fmt.Sprintf("dxpu-kube-%d-%s", pid, of) }

// removeStale removes the groups of processes that have ended without doing so.
func removeStale(root string) {
	groups, err := filepath.Glob(filepath.Join(root, "dxpu-kube-*"))
	if err != nil {
		return
	}
	for _, dir := range groups {
		var pid int
		if _, err := fmt.Sscanf(filepath.Base(dir), "dxpu-kube-%d-", &pid); err != nil {
			continue
		}
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); errors.Is(err, fs.ErrNotExist) {
			_ = removeGroup(dir) // another test may remove it at the same time
		}
	}
}

// removeGroup removes a control group with those below it. The kernel may still be ending
// processes of it.
func removeGroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeGroup(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if err = os.Remove(dir); err == nil || time.Now().After(end) {
			return err
		}
	}
}
