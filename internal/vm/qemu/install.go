package qemu

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// ErrNotInstalled is the cause when there is no QEMU or no guest image.
var ErrNotInstalled = errors.New("not installed")

// An Install names the files that a VM needs.
type Install struct {
	QEMU   string // a qemu-system-x86_64 of 10.1 or newer
	Kernel string // a bzImage
	Initrd string // an initramfs whose /init speaks scripts/guest/PROTOCOL.md
}

// CacheDir is where the scripts install: $DXPU_CACHE, or dxpu below the user's cache
// directory ($XDG_CACHE_HOME, ~/.cache).
func CacheDir() (string, error) {
	if dir := os.Getenv("DXPU_CACHE"); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("qemu: cache directory: %w", err)
	}
	return filepath.Join(dir, "dxpu"), nil
}

// Locate finds QEMU ($DXPU_QEMU, then the cache, then $PATH) and the guest image (the
// cache). The error for a missing one wraps [ErrNotInstalled] and names the remedy.
func Locate() (Install, error) { return LocateGuest("") }

// LocateGuest is [Locate] with another guest of scripts/build-guest.sh, such as
// "bookworm-generic".
func LocateGuest(name string) (Install, error) {
	cache, err := CacheDir()
	if err != nil {
		return Install{}, err
	}
	guest, remedy := filepath.Join(cache, "guest"), "scripts/build-guest.sh"
	if name != "" {
		guest, remedy = guest+"-of-"+name, remedy+" "+name
	}
	program, err := LocateQEMU()
	if err != nil {
		return Install{}, err
	}
	i := Install{
		QEMU:   program,
		Kernel: filepath.Join(guest, "vmlinuz"),
		Initrd: filepath.Join(guest, "initramfs.cpio"),
	}
	for _, f := range []string{i.Kernel, i.Initrd} {
		if _, err := os.Stat(f); err != nil {
			return Install{}, fmt.Errorf("qemu: %s: %w; remedy: %s", f, ErrNotInstalled, remedy)
		}
	}
	return i, nil
}

// LocateQEMU is the part of [Locate] for the program alone.
func LocateQEMU() (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	program := filepath.Join(cache, "qemu", "bin", "qemu-system-x86_64")
	if named := os.Getenv("DXPU_QEMU"); named != "" {
		program = named
	} else if _, err := os.Stat(program); err != nil {
		found, err := exec.LookPath("qemu-system-x86_64")
		if err != nil {
			return "", fmt.Errorf("qemu: %s: %w; remedy: scripts/install-qemu.sh", program, ErrNotInstalled)
		}
		program = found
	}
	if _, err := os.Stat(program); err != nil {
		return "", fmt.Errorf("qemu: %w: %w", ErrNotInstalled, err)
	}
	return program, nil
}
