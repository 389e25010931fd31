package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// confinedVar tells the process that it has confined itself, and what the kernel cannot do.
const confinedVar = "DXPU_OPENCL_CONFINED"

// errLess is the error of a process that is less confined than it should be.
var errLess = errors.New("less confined")

// readable are the files that platforms, compilers and their headers need, and devices
// the directories with the nodes of GPUs. The program of a tenant, and the compiler with
// its #include, reach nothing else but the directory of the process: not the key of the
// box, not files of its user.
var (
	readable = []string{"/usr", "/lib", "/lib64", "/bin", "/opt", "/etc/OpenCL", "/etc/ld.so.cache", "/etc/alternatives", "/etc/debian_version", "/proc", "/sys"}
	devices  = []string{"/dev/dri", "/dev/kfd", "/dev/null", "/dev/zero", "/dev/urandom"}
)

// Rights of Landlock since version 2, without which no file moves between directories, as
// compilers' results do.
const (
	rightsRead  = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR | unix.LANDLOCK_ACCESS_FS_EXECUTE
	rightsFile  = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_EXECUTE
	rightsWrite = unix.LANDLOCK_ACCESS_FS_WRITE_FILE
	rightsAll   = 1<<14 - 1 // LANDLOCK_ACCESS_FS_EXECUTE to LANDLOCK_ACCESS_FS_REFER
)

// rulesetFor returns what a version of Landlock restricts, and the size of the structure
// that it knows. Version 3 adds the length of files, which truncate(2) changes without
// opening them; version 6 signals and abstract sockets of other processes.
func rulesetFor(version uintptr) (attr unix.LandlockRulesetAttr, size uintptr) {
	attr.Handled_access_fs = rightsAll
	if version >= 3 {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if version < 6 {
		return attr, unsafe.Sizeof(attr.Handled_access_fs)
	}
	attr.Scoped = unix.LANDLOCK_SCOPE_SIGNAL | unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET
	return attr, unsafe.Offsetof(attr.Scoped) + unsafe.Sizeof(attr.Scoped)
}

// errNoLandlock means that the kernel cannot confine the process.
var errNoLandlock = errors.New("the kernel has no Landlock: a tenant's program can read the files of the box's user")

// confine executes the program again, confined to the files and the system calls that it
// needs. The restrictions hold for a thread and those that it starts, so they must be there
// before the others. It returns only with an error, or in the confined process: errLess if the
// kernel cannot do all of it.
func confine() error {
	const whole = "yes"
	switch said := os.Getenv(confinedVar); said {
	case "":
	case whole:
		return os.Unsetenv(confinedVar)
	default:
		return errors.Join(fmt.Errorf("%w: %s", errLess, said), os.Unsetenv(confinedVar))
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	said := whole
	files, calls := confineFiles(self), filter()
	for _, err := range []error{files, calls} {
		if err != nil && !errors.Is(err, errNoLandlock) && !errors.Is(err, errNoFilter) {
			return err
		}
	}
	if less := errors.Join(files, calls); less != nil {
		said = less.Error()
	}
	return unix.Exec(self, os.Args, append(os.Environ(), confinedVar+"="+said))
}

// confineFiles confines the calling thread to the files that the program needs.
func confineFiles(self string) error {
	version, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if e != 0 {
		return fmt.Errorf("%w: %w", errNoLandlock, e)
	}
	if version < 2 {
		return fmt.Errorf("%w: version %d, want 2 or later", errNoLandlock, version)
	}
	attr, size := rulesetFor(version)
	ruleset, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if e != 0 {
		return fmt.Errorf("%w: %w", errNoLandlock, e)
	}
	unix.CloseOnExec(int(ruleset))
	for _, path := range readable {
		allow(ruleset, path, rightsRead)
	}
	files, dirs := platformFiles(os.Getenv)
	for _, path := range files {
		allow(ruleset, path, rightsFile)
	}
	for _, path := range dirs {
		allow(ruleset, path, unix.LANDLOCK_ACCESS_FS_READ_DIR)
	}
	for _, path := range append(devices, nvidia()...) {
		allow(ruleset, path, rightsRead|rightsWrite)
	}
	if home := os.Getenv("HOME"); home != "" { // the directory of this process
		allow(ruleset, home, attr.Handled_access_fs)
	}
	allow(ruleset, self, rightsFile)
	if _, _, e := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0, 0); e != 0 {
		return fmt.Errorf("confine the process: %w", e)
	}
	return nil
}

// nvidia returns the device nodes of NVIDIA's driver.
func nvidia() []string {
	var nodes []string
	entries, _ := os.ReadDir("/dev") // without it, there is nothing to allow
	for _, e := range entries {
		if len(e.Name()) >= 6 && e.Name()[:6] == "nvidia" {
			nodes = append(nodes, "/dev/"+e.Name())
		}
	}
	return nodes
}

// allow adds a file or a directory to a ruleset, if it exists.
func allow(ruleset uintptr, path string, rights uint64) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= rightsFile | rightsWrite
	}
	// The structure of the system call is packed: 12 bytes.
	rule := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
	_, _, _ = unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, ruleset, unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
}
