package atomicfile

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Output writes a file that a person or a program asked for, such as a report: in one step,
// so that an error keeps the old file, and no reader gets a part of the new one. A new file
// has the mode perm less the umask, and another one keeps its mode and its owner.
//
// Output writes in place where it may not replace: a device, a pipe and a link, such as
// /dev/stdout, and a file in a directory that the caller may not write. It does not sync:
// the caller can make such a file again after a power failure.
func Output(path string, data []byte, perm fs.FileMode) error {
	old, err := os.Lstat(path)
	if err != nil {
		return replace(path, nil, data, perm) // it says why if the directory is not there
	}
	if !old.Mode().IsRegular() {
		return os.WriteFile(path, data, perm)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0) // a file that is write-protected stays
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err = replace(path, old, data, perm); fixed(err) {
		return os.WriteFile(path, data, perm)
	}
	return err
}

// fixed reports whether a file is not to be replaced, as in a directory of another user, or
// mounted alone into a container.
func fixed(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EBUSY)
}

// replace writes data to a new file in the place of old; nil: there is none.
func replace(path string, old fs.FileInfo, data []byte, perm fs.FileMode) error {
	if old != nil {
		perm = 0o600 // until the owner is right
	}
	name := filepath.Join(filepath.Dir(path), hidden(path)+rand.Text())
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return naming(path, err)
	}
	if old != nil {
		if err = keepOwner(f, old); err == nil {
			err = f.Chmod(old.Mode().Perm())
		}
	}
	if err == nil {
		_, err = f.Write(data)
	}
	return rename(f, path, err)
}
