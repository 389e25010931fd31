// Package atomicfile replaces files so that a crash leaves the old or the new contents.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// Replace replaces a file by one that only its owner may read, whatever the mode of the
// old file, with the contents that write writes. It syncs the file and its directory. An
// error of write keeps the old file. It refuses a directory, a device and a pipe, such as
// /dev/stdout, which would give way to a file.
func Replace(path string, write func(*os.File) error) error {
	switch info, err := os.Stat(path); {
	case err == nil && info.IsDir():
		return fmt.Errorf("%s: is a directory", path)
	case err == nil && !info.Mode().IsRegular():
		return fmt.Errorf("%s: is not a regular file", path)
	}
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, hidden(path)+"*") // mode 0600
	if err != nil {
		return naming(path, err)
	}
	if err := rename(f, path, errors.Join(write(f), f.Sync())); err != nil {
		return err
	}
	if runtime.GOOS == "windows" {
		return nil // a directory cannot be synced there
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close()) // makes the new name durable
}

// Write replaces a file by one that contains data.
func Write(path string, data []byte) error {
	return Replace(path, func(f *os.File) error {
		_, err := f.Write(data)
		return err
	})
}

// Sweep removes the temporary files of processes that were killed while they replaced a file.
// No other process replaces the file meanwhile.
func Sweep(path string) error {
	dir, prefix := filepath.Dir(path), hidden(path)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), prefix)
		if ok && e.Type().IsRegular() && rest != "" && strings.Trim(rest, "0123456789") == "" {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// rename closes a file and gives it the name path, or removes it after an error.
func rename(f *os.File, path string, err error) error {
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(naming(path, err), os.Remove(f.Name()))
	}
	return nil
}

// mostName bounds how much of a file's name that of its temporary one has, in bytes: a name has
// 255 at most.
const mostName = 100

// hidden returns the beginning of the name of a temporary file for path.
func hidden(path string) string {
	name := filepath.Base(path)
	return "." + strings.ToValidUTF8(name[:min(len(name), mostName)], "") + "-"
}

// naming names the file in an error about its temporary one.
func naming(path string, err error) error {
	var temporary *fs.PathError
	if errors.As(err, &temporary) {
		temporary.Path = path
	}
	return err
}
