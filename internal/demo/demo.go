// Package demo demonstrates the system on one machine: a manager, two GPU boxes and a
// host whose VM gets a GPU, loses it, gets the spare, keeps it while it moves to another box,
// and releases it.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/client"
	"github.com/dxpu-project/dxpu/internal/localpool"
	"github.com/dxpu-project/dxpu/internal/vm/qemu"
)

// Config configures the demonstration.
type Config struct {
	Program string        // the dxpu binary, statically linked, because the guest runs it, too
	Dir     string        // an empty directory for sockets and logs
	Install *qemu.Install // nil: the embedded host replaces the VM
	Reason  string        // why there is no VM, as text
	OpenCL  OpenCL        // for a VM
	Out     io.Writer
}

// Report is the result of a demonstration.
type Report struct {
	OK      bool   `json:"ok"`
	Host    string `json:"host"` // the VM or its replacement
	Steps   []Step `json:"steps"`
	Figures []Step `json:"figures"` // durations that matter to a user
}

// Step is one line of the timeline.
type Step struct {
	Name   string        `json:"name"`
	At     time.Duration `json:"at_ns,omitempty"` // end of the step, since the start
	Took   time.Duration `json:"took_ns"`
	Detail string        `json:"detail,omitempty"`
}

const (
	gpusPerBox = 4
	hostName   = "host-1"
	// stepTimeout bounds each step. The longest one is a full test under emulation.
	stepTimeout = 3 * time.Minute
)

// computer is the machine that gets a GPU: a VM, or the embedded host.
type computer interface {
	// name describes the computer.
	name() string
	// sees waits until the computer has a GPU (present) or has none, and describes the
	// GPU.
	sees(ctx context.Context, present bool) (string, error)
	// test runs the test of the GPU, which checks every result and writes to out.
	test(ctx context.Context, out io.Writer) error
	// openCL runs a program of OpenCL, and returns what it prints.
	openCL(ctx context.Context, o OpenCL) (string, error)
	// bootID returns an ID that changes with each boot.
	bootID(ctx context.Context) (string, error)
	close() error
}

// demo is one run.
type demo struct {
	cfg    Config
	began  time.Time
	report *Report
	procs  localpool.Daemons
	api    dxpuv1connect.PoolServiceClient
	url    string
	pc     computer
	boot   string
	lease  string
	shared sharing
}

// Run runs the demonstration. After an error the report contains the steps up to it.
// Run leaves no process behind.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	d := &demo{cfg: cfg, began: time.Now(), report: &Report{}}
	d.procs = localpool.Daemons{Program: cfg.Program, Dir: cfg.Dir, JoinToken: "demonstration-" + filepath.Base(cfg.Dir)}
	d.say("A VM hot-plugs a GPU that is on another machine\n")
	if cfg.Install == nil {
		d.say("There is no VM: %s.\nThe embedded host, a root complex in Go, replaces it.\n", cfg.Reason)
	}
	d.say("%9s  %9s", "time", "took")
	err := d.run(ctx)
	err = errors.Join(err, d.tearDown())
	d.report.OK = err == nil
	if err == nil {
		d.summary()
	}
	return d.report, err
}

// action is a step before it has run.
type action struct {
	name string
	do   func(ctx context.Context) (detail string, err error)
}

func (d *demo) run(ctx context.Context) error {
	for _, s := range append([]action{
		{"manager, box-a and box-b start", d.startPool},
		{"host proxy and VM start", d.startComputer},
		{"a lease for one GPU is created and attached", d.attach},
		{"the guest sees the GPU", d.seen},
		{"a program in the guest tests the GPU", d.drive},
		{"the GPU is killed while the program runs", d.kill},
		{"the spare has taken its place", d.replaced},
		{"the program runs again, on the spare", d.driveAgain},
		{"the GPU moves to another box while the program runs", d.migrate},
		{"the guest was not rebooted", d.sameBoot},
		{"the lease is deleted, the GPU detached", d.detach},
		{"a box with one GPU in slices, and a second host start", d.startShared},
		{"two hosts get a slice of the same GPU", d.leaseSlices},
		{"both use it at the same time", d.measureSlices},
		{"one slice fails, the other goes on", d.failSlice},
		{"the leases are deleted, the slices detached", d.endShared},
	}, d.openCL()...) {
		if err := d.step(ctx, s.name, s.do); err != nil {
			return err
		}
	}
	return nil
}

// tearDown ends everything and checks that no process is left.
func (d *demo) tearDown() error {
	at := time.Now()
	var err error
	if d.pc != nil {
		err = d.pc.close()
	}
	if d.shared.host != nil {
		_ = d.shared.close() // after an error the GPU may be gone
		err = errors.Join(err, d.shared.host.close())
	}
	if err = errors.Join(err, d.procs.Stop()); err == nil {
		d.say("%7.2f s  %7.2f s  all %d processes have ended", time.Since(d.began).Seconds(), time.Since(at).Seconds(), d.procs.Count())
	}
	return err
}

// step runs one step and prints its line.
func (d *demo) step(ctx context.Context, name string, do func(context.Context) (string, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stepTimeout, fmt.Errorf("%q took longer than %v", name, stepTimeout))
	defer cancel()
	at := time.Now()
	detail, err := do(ctx)
	s := Step{Name: name, At: time.Since(d.began), Took: time.Since(at), Detail: detail}
	d.report.Steps = append(d.report.Steps, s)
	verdict := name
	if err != nil {
		verdict = "FAILED: " + name
	}
	d.say("%7.2f s  %7.2f s  %s", s.At.Seconds(), s.Took.Seconds(), verdict)
	for line := range strings.Lines(detail) {
		d.say("%22s%s", "", strings.TrimRight(line, "\n"))
	}
	if err != nil {
		return fmt.Errorf("demo: %s: %w (logs are in %s)", name, errors.Join(err, context.Cause(ctx)), d.cfg.Dir)
	}
	return nil
}

// figure records a duration for the summary.
func (d *demo) figure(name string, took time.Duration) {
	d.report.Figures = append(d.report.Figures, Step{Name: name, Took: took})
}

func (d *demo) say(format string, args ...any) {
	_, _ = fmt.Fprintf(d.cfg.Out, format+"\n", args...)
}

func (d *demo) summary() {
	d.say("\nMeasured on this machine, on one loopback network:")
	for _, f := range d.report.Figures {
		d.say("  %-60s %9.1f ms", f.Name, milliseconds(f.Took))
	}
	d.say("\n\"dxpu dev\" starts such a pool and keeps it, with its page for a browser.")
}

// startPool starts the manager and the boxes, and waits for the GPUs.
func (d *demo) startPool(ctx context.Context) (string, error) {
	urlFile := d.procs.Path("manager.url")
	if err := d.procs.Start("manager", "manager", "--listen", "127.0.0.1:0", "--url-file", urlFile, "--spares", "1"); err != nil {
		return "", err
	}
	var err error
	if d.url, err = localpool.AwaitFile(ctx, urlFile); err != nil {
		return "", err
	}
	api, err := client.New(client.Config{Managers: []string{d.url}})
	if err != nil {
		return "", err
	}
	d.api = api.Pool
	for _, name := range []string{"box-a", "box-b"} {
		err := d.procs.Start(name, "box", "--manager", d.url, "--name", name, "--gpus", fmt.Sprint(gpusPerBox),
			"--admin-listen", "127.0.0.1:0", "--allow-faults", "--admin-url-file", d.procs.Path(name+".url"))
		if err != nil {
			return "", err
		}
	}
	err = localpool.Poll(ctx, func() (bool, error) {
		res, err := d.api.GetPool(ctx, connect.NewRequest(&dxpuv1.GetPoolRequest{}))
		if err != nil {
			return false, nil // it does not serve yet
		}
		return res.Msg.GetPool().GetGpus() == 2*gpusPerBox, nil
	})
	return fmt.Sprintf("%d software GPUs in two boxes, one held back as a spare", 2*gpusPerBox), err
}

// startComputer boots the VM and starts its host proxy.
func (d *demo) startComputer(ctx context.Context) (string, error) {
	var err error
	if d.cfg.Install != nil {
		d.pc, err = d.startVM(ctx)
	} else {
		d.pc, err = d.startEmbedded()
	}
	if err != nil {
		return "", err
	}
	d.report.Host = d.pc.name()
	if d.boot, err = d.pc.bootID(ctx); err != nil {
		return "", err
	}
	err = localpool.Poll(ctx, func() (bool, error) {
		res, err := d.api.GetHost(ctx, connect.NewRequest(&dxpuv1.GetHostRequest{HostId: hostName}))
		return err == nil && res.Msg.GetHost().GetNode().GetConnected(), nil
	})
	return d.pc.name(), err
}

// attach creates a lease of one GPU and waits until the GPU is attached.
func (d *demo) attach(ctx context.Context) (string, error) {
	at := time.Now()
	res, err := d.api.CreateLease(ctx, connect.NewRequest(&dxpuv1.CreateLeaseRequest{Spec: &dxpuv1.LeaseSpec{Count: 1, HostId: hostName}}))
	if err != nil {
		return "", err
	}
	d.lease = res.Msg.GetLease().GetId()
	b, err := d.active(ctx)
	if err != nil {
		return "", err
	}
	d.figure("attach, from the call to the device in the VM's slot", time.Since(at))
	return fmt.Sprintf("%s -> %s slot %d\n%s", b.GpuId, b.HostId, b.HostSlot, timeline(b)), nil
}

// active waits until the lease has its GPU and returns the binding.
func (d *demo) active(ctx context.Context) (*dxpuv1.Binding, error) { return d.activeOf(ctx, d.lease) }

func (d *demo) activeOf(ctx context.Context, id string) (*dxpuv1.Binding, error) {
	var found *dxpuv1.Binding
	err := localpool.Poll(ctx, func() (bool, error) {
		lease, err := d.getLease(ctx, id)
		if err != nil || lease.State != dxpuv1.LeaseState_LEASE_STATE_ACTIVE {
			if lease.GetState() == dxpuv1.LeaseState_LEASE_STATE_FAILED {
				err = errors.New(lease.StateReason)
			}
			return false, err
		}
		for _, b := range lease.Bindings {
			if b.State == dxpuv1.BindingState_BINDING_STATE_ATTACHED {
				found = b
			}
		}
		return found != nil, nil
	})
	return found, err
}

func (d *demo) getLease(ctx context.Context, id string) (*dxpuv1.Lease, error) {
	res, err := d.api.GetLease(ctx, connect.NewRequest(&dxpuv1.GetLeaseRequest{LeaseId: id}))
	if err != nil {
		return nil, err
	}
	return res.Msg.Lease, nil
}

// timeline prints the steps of an attach, by node.
func timeline(b *dxpuv1.Binding) string {
	var lines []string
	last := ""
	for _, s := range b.Timeline {
		took := s.Duration.AsDuration()
		if s.NodeId == "" || took < 50*time.Microsecond {
			continue // a step of the manager, or one without a duration
		}
		text := fmt.Sprintf("%s %.1f ms", strings.ReplaceAll(s.Name, "_", " "), float64(took.Microseconds())/1000)
		if s.NodeId == last {
			lines[len(lines)-1] += ", " + text
			continue
		}
		last = s.NodeId
		lines = append(lines, s.NodeId+": "+text)
	}
	return strings.Join(lines, "; ")
}

func (d *demo) seen(ctx context.Context) (string, error) { return d.pc.sees(ctx, true) }

// drive runs the test program.
func (d *demo) drive(ctx context.Context) (string, error) {
	var out strings.Builder
	err := d.pc.test(ctx, &out)
	return out.String(), err
}

// driveAgain is drive with only the last line of the program's output.
func (d *demo) driveAgain(ctx context.Context) (string, error) {
	out, err := d.drive(ctx)
	if err == nil {
		out = lastLine(out)
	}
	return out, err
}

// kill makes the leased GPU fail while the program uses it.
func (d *demo) kill(ctx context.Context) (string, error) {
	b, err := d.active(ctx)
	if err != nil {
		return "", err
	}
	// The check after that of the registers copies data.
	out := &progress{until: "registers", seen: make(chan struct{})}
	ended := make(chan error, 1)
	go func() { ended <- d.pc.test(ctx, out) }()
	select {
	case <-out.seen:
	case err := <-ended:
		return "", fmt.Errorf("the program ended before the GPU was killed: %w", errors.Join(err, errors.New(out.String())))
	}
	at := time.Now()
	admin, err := os.ReadFile(d.procs.Path(b.BoxId + ".url"))
	if err != nil {
		return "", err
	}
	if err := inject(ctx, strings.TrimSpace(string(admin)), b.BoxSlot); err != nil {
		return "", err
	}
	if err := <-ended; err == nil {
		return "", errors.New("the program did not notice the failure")
	}
	noticed := time.Since(at)
	d.figure("failure of a GPU, until the program in the guest notices", noticed)
	failed := b.GpuId
	if b, err = d.replacement(ctx, b.Id); err != nil {
		return "", err
	}
	d.figure("failure of a GPU, until the spare is attached", time.Since(at))
	return fmt.Sprintf("%s has failed; the program noticed after %d ms: %s\n%s was attached %d ms after the failure",
		failed, noticed.Milliseconds(), lastLine(out.String()), b.GpuId, time.Since(at).Milliseconds()), nil
}

// replacement waits for a binding with another GPU.
func (d *demo) replacement(ctx context.Context, old string) (b *dxpuv1.Binding, err error) {
	err = localpool.Poll(ctx, func() (_ bool, err error) {
		b, err = d.active(ctx)
		return b.GetId() != old, err
	})
	return b, err
}

func inject(ctx context.Context, admin string, slot uint32) error {
	target := fmt.Sprintf("%s/faults?%s", admin, url.Values{"slot": {fmt.Sprint(slot)}, "fault": {"kill"}}.Encode())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("POST %s: %s", target, res.Status)
	}
	return nil
}

func (d *demo) replaced(ctx context.Context) (string, error) {
	b, err := d.active(ctx)
	if err != nil {
		return "", err
	}
	seen, err := d.pc.sees(ctx, true)
	return fmt.Sprintf("%s -> %s slot %d\n%s", b.GpuId, b.HostId, b.HostSlot, seen), err
}

func (d *demo) sameBoot(ctx context.Context) (string, error) {
	id, err := d.pc.bootID(ctx)
	if err == nil && id != d.boot {
		err = fmt.Errorf("boot ID %s, was %s", id, d.boot)
	}
	return "boot ID " + id, err
}

// detach deletes the lease and waits for the guest and the pool.
func (d *demo) detach(ctx context.Context) (string, error) {
	at := time.Now()
	detail, err := d.release(ctx)
	d.figure("detach, until the GPU is scrubbed and free", time.Since(at))
	return detail, err
}

func (d *demo) release(ctx context.Context) (string, error) {
	if _, err := d.api.DeleteLease(ctx, connect.NewRequest(&dxpuv1.DeleteLeaseRequest{LeaseId: d.lease})); err != nil {
		return "", err
	}
	if _, err := d.pc.sees(ctx, false); err != nil {
		return "", err
	}
	err := localpool.Poll(ctx, func() (bool, error) {
		lease, err := d.getLease(ctx, d.lease)
		return lease.GetState() == dxpuv1.LeaseState_LEASE_STATE_RELEASED, err
	})
	return "unplugged by the guest, reset, scrubbed and free", err
}
