//go:build linux

package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// The folder of a share, DIR/ID, belongs to the share's user, and keeps other users out.
// In it, DIR/ID/client belongs to the agent and has the socket. Containers see only that
// one. The user may exchange what DIR/ID has: the agent, which is often root, never follows
// a path through it while the user owns it.

// goneMark begins the names of folders that are to be removed. No share has such a name.
const goneMark = ".gone-"

// maxSocketPath is the longest path of a socket in bytes: unix(7).
const maxSocketPath = 107

// checkDir refuses a folder of the agent in which others may exchange the shares' folders.
func checkDir(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	if st.Mode&0o022 != 0 || (int(st.Uid) != os.Geteuid() && st.Uid != 0) {
		return fmt.Errorf("%s: other users may write to it: choose a folder that only the agent's user may write to", dir)
	}
	return nil
}

// listenShare makes the folder of a share and opens its socket there.
func listenShare(dir string, r *Record) (*net.UnixListener, error) {
	path := SocketPath(dir, r.ID)
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("%s: %d bytes, want at most %d: choose a shorter folder", path, len(path), maxSocketPath)
	}
	outer, inner := filepath.Join(dir, r.ID), filepath.Dir(path)
	if err := makeFolder(outer); err != nil {
		return nil, err
	}
	// From here on the user cannot exchange anything.
	if err := errors.Join(os.Lchown(outer, os.Geteuid(), -1), os.Chmod(outer, 0o700)); err != nil {
		return nil, err
	}
	if err := makeFolder(inner); err != nil {
		return nil, err
	}
	l, err := listenIn(inner)
	if err != nil {
		return nil, err
	}
	if err := os.Lchown(outer, r.UID, r.GID); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// makeFolder makes a folder, unless it is there. Where something else is, such as the agent's
// lock, it fails.
func makeFolder(path string) error {
	switch err := os.Mkdir(path, 0o700); {
	case !errors.Is(err, fs.ErrExist):
		return err
	case !isFolder(path):
		return fmt.Errorf("%s is no folder: choose another name", path)
	}
	return nil
}

func isFolder(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

// listenIn opens the socket in the inner folder. It refuses one that the user put there.
func listenIn(inner string) (*net.UnixListener, error) {
	fd, err := unix.Open(inner, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: inner, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &os.PathError{Op: "fstat", Path: inner, Err: err}
	}
	if int(st.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("%s: belongs to user %d, not to the agent: remove it", inner, st.Uid)
	}
	held := fmt.Sprintf("/proc/self/fd/%d", fd)
	path := filepath.Join(held, filepath.Base(SocketPath("", "")))
	if err := os.Chmod(held, 0o755); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // a later agent makes its own
	if err := os.Chmod(path, 0o666); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// discardLocked takes the folder of a share away. The saver removes it, without the lock:
// its user may have put any number of files there. A file in its place is not a share's.
func (a *Agent) discardLocked(id string) {
	if !isFolder(filepath.Join(a.config.Dir, id)) {
		return
	}
	a.discarded++
	gone := filepath.Join(a.config.Dir, fmt.Sprint(goneMark, a.config.Broker.Agent, "-", a.discarded))
	if err := os.Rename(filepath.Join(a.config.Dir, id), gone); err != nil {
		a.config.Log.Warn("folder of a share is not removed", "share", id, "error", err)
		return
	}
	a.gone = append(a.gone, gone)
}

// clean removes the folders of shares that have ended.
func (a *Agent) clean() {
	a.mu.Lock()
	gone := a.gone
	a.gone = nil
	a.mu.Unlock()
	for _, path := range gone {
		if err := os.RemoveAll(path); err != nil {
			a.config.Log.Warn("folder of a share is not removed", "folder", path, "error", err)
		}
	}
}

// sortOutLocked discards the folders that a former agent left of shares that have ended. It
// leaves folders alone that are not of a share.
func (a *Agent) sortOutLocked(live func(id string) bool) error {
	entries, err := os.ReadDir(a.config.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		switch inner, err := os.Lstat(filepath.Join(a.config.Dir, name, "client")); {
		case !e.IsDir() || live(name):
		case strings.HasPrefix(name, goneMark):
			a.gone = append(a.gone, filepath.Join(a.config.Dir, name))
		case err == nil && inner.IsDir():
			a.discardLocked(name)
		}
	}
	return nil
}
