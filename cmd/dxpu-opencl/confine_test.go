package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// victimVar names, for the confined process of TestConfined, a file of the box.
const victimVar = "DXPU_TEST_VICTIM"

// The confined process neither reads, writes nor shortens a file of the box, nor one that
// others share in /dev/shm, and sends no signal to another process of its user.
func TestConfined(t *testing.T) {
	if victim := os.Getenv(victimVar); victim != "" {
		tryToBreakOut(t, victim) // starts no process
		return
	}
	switch _, e := landlockVersion(); e {
	case 0:
	case unix.ENOSYS, unix.EOPNOTSUPP:
		t.Skipf("the kernel has no Landlock: %v", e)
	default:
		t.Fatalf("Landlock is refused: %v", e)
	}
	victim := filepath.Join(t.TempDir(), "key")
	shared, err := os.CreateTemp("/dev/shm", "dxpu-test-")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("this machine has no /dev/shm")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(shared.Name())
	defer shared.Close()
	for _, f := range []string{victim, shared.Name()} {
		if err := os.WriteFile(f, []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestConfined$")
		cmd.Env = append(os.Environ(), victimVar+"="+f, "HOME="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", f, err, out)
		}
		if raw, err := os.ReadFile(f); string(raw) != "secret" {
			t.Errorf("%s has %q now, %v", f, raw, err)
		}
	}
}

// landlockVersion returns the kernel's version of Landlock.
func landlockVersion() (uintptr, unix.Errno) {
	version, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	return version, e
}

// tryToBreakOut confines this process, and tries what a tenant's program may try.
func tryToBreakOut(t *testing.T, victim string) {
	if err := confine(); err != nil { // executes the program again
		t.Fatal(err)
	}
	tryCalls(t)
	own := filepath.Join(os.Getenv("HOME"), "f")
	if err := errors.Join(os.WriteFile(own, []byte("12"), 0o600), os.Truncate(own, 1)); err != nil {
		t.Errorf("its own file: %v", err)
	}
	version, _ := landlockVersion()
	if err := os.Truncate(victim, 0); err == nil && version >= 3 {
		t.Error("shortened the file")
	}
	if f, err := os.Open(victim); err == nil {
		f.Close()
		t.Error("opened the file for reading")
	}
	if f, err := os.OpenFile(victim, os.O_WRONLY, 0); err == nil {
		f.Close()
		t.Error("opened the file for writing")
	}
	if err := unix.Kill(os.Getppid(), 0); !errors.Is(err, unix.EPERM) && version >= 6 {
		t.Errorf("a signal to the process that started it: %v", err)
	}
}
