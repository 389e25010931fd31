package qemu

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
)

// A File is copied into the guest.
type File struct {
	Path   string      // in the guest, absolute; missing directories are created
	Source string      // on this machine
	Mode   os.FileMode // permission bits; 0: 0755
}

// cpioAlign is the multiple of bytes on which members of the newc format begin, and on which
// the kernel looks for the next archive (Documentation/driver-api/early-userspace/buffer-format.rst).
const cpioAlign = 4

// writeInitramfs writes the base archive and behind it one with the files. The kernel unpacks
// both, the second over the first.
func writeInitramfs(w io.Writer, base string, files []File) error {
	c := &cpioWriter{w: w}
	if err := c.copyFile(base); err != nil {
		return err
	}
	made := map[string]bool{"/": true}
	for _, f := range files {
		if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || f.Path == "/" {
			return fmt.Errorf("guest path %q is not absolute and clean", f.Path)
		}
		for _, dir := range parents(f.Path) {
			if !made[dir] {
				made[dir] = true
				c.member(dir, 0o040755, 0)
			}
		}
		if err := c.file(f); err != nil {
			return err
		}
	}
	c.member("/TRAILER!!!", 0, 0)
	return c.err
}

// parents are the directories above a path, outermost first, without the root.
func parents(p string) []string {
	var dirs []string
	for p = path.Dir(p); p != "/"; p = path.Dir(p) {
		dirs = append(dirs, p)
	}
	slices.Reverse(dirs)
	return dirs
}

// cpioWriter writes the newc format: cpio(5), "New ASCII Format". It keeps its first error.
type cpioWriter struct {
	w   io.Writer
	n   int64
	ino uint32
	err error
}

func (c *cpioWriter) Write(b []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.w.Write(b)
	c.n += int64(n)
	c.err = err
	return n, err
}

func (c *cpioWriter) pad() {
	var zeros [cpioAlign]byte
	if rest := int(c.n % cpioAlign); rest != 0 {
		_, _ = c.Write(zeros[rest:])
	}
}

// member writes a header; size bytes and a pad must follow.
func (c *cpioWriter) member(name string, mode uint32, size int64) {
	c.ino++ // the kernel takes two members with one inode for hard links only if nlink > 1
	name = strings.TrimPrefix(name, "/")
	_, _ = fmt.Fprintf(c, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		c.ino, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0, name)
	c.pad()
}

func (c *cpioWriter) file(f File) error {
	info, err := os.Stat(f.Source)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() >= 1<<32 { // sizes have 32 bits
		return fmt.Errorf("%s: not a regular file of less than 4 GiB", f.Source)
	}
	mode := f.Mode.Perm()
	if mode == 0 {
		mode = 0o755
	}
	before := c.n
	c.member(f.Path, 0o100000|uint32(mode), info.Size())
	header := c.n - before
	if err := c.copyFile(f.Source); err != nil {
		return err
	}
	if written := c.n - before - header; written != (info.Size()+cpioAlign-1)/cpioAlign*cpioAlign {
		return fmt.Errorf("%s changed while it was read", f.Source)
	}
	return nil
}

func (c *cpioWriter) copyFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(c, f)
	c.pad()
	return errors.Join(err, f.Close())
}
