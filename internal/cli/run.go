//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// runOptions are the flags of "dxpu run".
type runOptions struct {
	conn      *connection
	lease     leaseFlags
	socketDir string
	driver    string
	cache     string
	timeout   time.Duration
}

func newRunCommand(conn *connection) *cobra.Command {
	o := &runOptions{conn: conn, lease: leaseFlags{ttl: defaultRunTTL}}
	cmd := &cobra.Command{
		Use: "run [flags] -- PROGRAM [ARGUMENT...]", Short: "Run an OpenCL program on GPUs of the pool", Args: cobra.MinimumNArgs(1),
		Long: `Run an OpenCL program on GPUs of the pool. The command leases the GPUs for this host,
starts the program with the OpenCL driver of DxPU, and releases the GPUs when the
program ends. The exit code is that of the program, or 128 and the number of the
signal that ended it.

This machine runs "dxpu host" without a VM (no --qmp), whose --socket-dir is given here
too. A box offers OpenCL devices with "dxpu box --opencl". The driver is
libdxpu-opencl.so beside dxpu or in /usr/lib/dxpu, found by the ICD loader of the
program through $OCL_ICD_VENDORS.

With --cache, what the box has compiled is kept in a directory of this machine, and the
next run of a program compiles nothing. The program takes longer to end, once.

A program whose GPU is lost gets CL_DEVICE_NOT_AVAILABLE. A signal to the command ends
the program first. After SIGKILL the lease ends by itself within --ttl, because this command
does not renew it any more.`,
		Example: `  dxpu run --gpus 1 --host h1 --socket-dir /run/dxpu -- clpeak
  dxpu run --gpus 2 --model "NVIDIA H200" --socket-dir /run/dxpu -- clinfo`,
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	f := cmd.Flags()
	o.lease.register(f, "gpus")
	f.SetInterspersed(false)
	f.StringVar(&o.socketDir, "socket-dir", os.Getenv("DXPU_SOCKET_DIR"), "directory with the sockets of the host (default $DXPU_SOCKET_DIR)")
	f.StringVar(&o.driver, "driver", "", "the OpenCL driver (default: libdxpu-opencl.so beside dxpu or in /usr/lib/dxpu)")
	f.StringVar(&o.cache, "cache", os.Getenv("DXPU_CL_CACHE"), "directory for the OpenCL programs that the box has compiled (default $DXPU_CL_CACHE; none: each run compiles)")
	positiveDurationVar(f, &o.timeout, "timeout", time.Minute, "longest wait for the GPUs")
	return conn.register(cmd)
}

// driverName is the file of the OpenCL driver.
const driverName = "libdxpu-opencl.so"

// findDriver returns the path of the OpenCL driver; "" looks where it is installed.
func findDriver(name string) (string, error) {
	candidates := []string{name}
	if name == "" {
		candidates = []string{filepath.Join("/usr/lib/dxpu", driverName)}
		if self, err := os.Executable(); err == nil {
			candidates = append([]string{filepath.Join(filepath.Dir(self), driverName)}, candidates...)
		}
	}
	for _, path := range candidates {
		if _, err := os.Stat(path); err == nil {
			return filepath.Abs(path)
		}
	}
	return "", withHint(fmt.Errorf("there is no OpenCL driver at %s", strings.Join(candidates, " or ")), `"make icd" builds it; --driver names it`)
}

func (o *runOptions) run(cmd *cobra.Command, args []string) (err error) {
	if o.socketDir == "" {
		return usage(withHint(errors.New("--socket-dir is missing"), `give the directory of "dxpu host --socket-dir"`))
	}
	if err := inRange("--gpus", 1, 64, int(o.lease.spec.Count)); err != nil {
		return err
	}
	// Before the lease, which would be for nothing.
	if _, err := os.Stat(o.socketDir); err != nil {
		return withHint(fmt.Errorf("--socket-dir: %w", err), `give the directory of "dxpu host --socket-dir"`)
	}
	if _, err := exec.LookPath(args[0]); err != nil {
		return err
	}
	driver, err := findDriver(o.driver)
	if err != nil {
		return err
	}
	if o.lease.spec.HostId == "" {
		if o.lease.spec.HostId, err = os.Hostname(); err != nil {
			return withHint(fmt.Errorf("host name: %w", err), "name the host with --host")
		}
	}
	vendors, err := os.MkdirTemp("", "dxpu-run-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(vendors)) }()
	if err := os.WriteFile(filepath.Join(vendors, "dxpu.icd"), []byte(driver+"\n"), 0o644); err != nil {
		return err
	}
	api, err := o.conn.pool()
	if err != nil {
		return err
	}
	if err := checkTenant(cmd.Context(), api, o.lease.spec.Tenant); err != nil {
		return err
	}
	created, err := callOn(cmd.Context(), api, poolAPI.CreateLease, &dxpuv1.CreateLeaseRequest{Spec: o.lease.message()})
	if err != nil {
		return err
	}
	id := created.Lease.Id
	// A second signal, as timeout(1) sends, must not end this process before the release.
	further := make(chan os.Signal, 1)
	signal.Notify(further, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(further)
	defer func() { err = errors.Join(err, release(cmd.Context(), api, id)) }()
	defer o.keep(cmd, api, id)()
	w := &leaseWait{api: api, says: o.conn.says, out: cmd.ErrOrStderr(), limit: o.timeout, done: hasState(dxpuv1.LeaseState_LEASE_STATE_ACTIVE)}
	lease, err := w.run(cmd.Context(), created.Lease)
	if err != nil {
		return err
	}
	env := []string{
		"OCL_ICD_VENDORS=" + vendors + "/", "OCL_ICD_FILENAMES=", "DXPU_LEASE=" + id, "DXPU_SOCKETS=" + o.sockets(lease),
		fmt.Sprintf("DXPU_LEASED_NS=%d", time.Now().UnixNano()),
	}
	if o.cache != "" {
		cache, err := filepath.Abs(o.cache)
		if err != nil {
			return err
		}
		env = append(env, "DXPU_CL_CACHE="+cache)
	}
	return runProgram(cmd, args, env)
}

// defaultRunTTL is how long the lease outlives a command that was killed.
const defaultRunTTL = 30 * time.Second

// keep renews the lease until stop is called.
func (o *runOptions) keep(cmd *cobra.Command, api poolAPI, id string) (stop func()) {
	if o.lease.ttl == 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(cmd.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		every := time.NewTicker(o.lease.ttl / 3)
		defer every.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-every.C:
			}
			_, err := callOn(ctx, api, poolAPI.RenewLease, &dxpuv1.RenewLeaseRequest{LeaseId: id})
			if code := connect.CodeOf(err); code == connect.CodeNotFound || code == connect.CodeFailedPrecondition {
				fmt.Fprintf(cmd.ErrOrStderr(), "the lease cannot be renewed: %v\n", err)
				return
			}
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// sockets returns the sockets of the lease's GPUs, with colons between them.
func (o *runOptions) sockets(l *dxpuv1.Lease) string {
	var paths []string
	for _, b := range l.Bindings {
		if b.State == dxpuv1.BindingState_BINDING_STATE_ATTACHED {
			paths = append(paths, fromAnywhere(filepath.Join(o.socketDir, fmt.Sprintf("slot%d.sock", b.HostSlot))))
		}
	}
	return strings.Join(paths, ":")
}

// maxSocketPath is the length, in bytes, of the longest path of a UNIX socket (unix(7)).
const maxSocketPath = 107

// fromAnywhere returns the absolute path of a socket, so that a program may change its working
// directory before it connects. A path that would be too long stays as it is.
func fromAnywhere(path string) string {
	if abs, err := filepath.Abs(path); err == nil && len(abs) <= maxSocketPath {
		return abs
	}
	return path
}

// releaseTimeout bounds the release of a lease after its program has ended.
const releaseTimeout = 20 * time.Second

// release ends a lease, also after ctx has ended, and waits until its GPUs are free.
func release(ctx context.Context, api poolAPI, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	res, err := callOn(ctx, api, poolAPI.DeleteLease, &dxpuv1.DeleteLeaseRequest{LeaseId: id})
	if err == nil {
		w := &leaseWait{
			api: api, out: io.Discard, limit: releaseTimeout,
			done: hasState(dxpuv1.LeaseState_LEASE_STATE_RELEASED, dxpuv1.LeaseState_LEASE_STATE_FAILED),
		}
		_, err = w.run(ctx, res.Lease)
	}
	if err != nil {
		return withHint(fmt.Errorf("release lease %s: %w", id, err), "dxpu lease delete %s", id)
	}
	return nil
}

// stopDelay is the time that a program has to end after SIGTERM.
const stopDelay = 10 * time.Second

// runProgram runs a program to its end.
func runProgram(cmd *cobra.Command, args, env []string) error {
	p := exec.CommandContext(cmd.Context(), args[0], args[1:]...)
	p.Stdin, p.Stdout, p.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	p.Env = append(os.Environ(), env...)
	p.Cancel = func() error { return p.Process.Signal(syscall.SIGTERM) }
	p.WaitDelay = stopDelay
	err := p.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	if s, ok := exit.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return &programError{128 + int(s.Signal()), fmt.Sprintf("%s: signal %v", args[0], s.Signal())}
	}
	return &programError{exit.ExitCode(), fmt.Sprintf("%s: exit code %d", args[0], exit.ExitCode())}
}
