package nvidia

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dxpu-project/dxpu/internal/dirlock"
	"github.com/dxpu-project/dxpu/internal/sharing/mig"
)

const (
	inUseTries = 5               // attempts at something that nvidia-smi says is in use
	inUseDelay = time.Second     // between them: monitors hold a GPU for a moment
	undoLimit  = 5 * time.Minute // for the way back after a failed step

	// badArgument is the status of nvidia-smi for an argument that it does not understand: nvidia-smi(1).
	badArgument = 2
)

// Device is a GPU as nvidia-smi lists it.
type Device struct {
	UUID   string `json:"uuid"`
	PCI    string `json:"pci"` // domain:bus:device.function, eight digits of domain
	Name   string `json:"name"`
	Memory int64  `json:"memory"` // bytes
}

// Devices lists the GPUs.
func (p Programs) Devices(ctx context.Context) ([]Device, error) {
	text, err := p.runSMI(ctx, "--query-gpu=uuid,pci.bus_id,name,memory.total", "--format=csv,noheader,nounits")
	if err != nil {
		return nil, err
	}
	return parseDevices(text)
}

// deviceName is a UUID, as nvidia-smi writes it: it becomes an argument and a variable.
var deviceName = regexp.MustCompile(`^GPU-[0-9a-zA-Z-]{1,64}$`)

func parseDevices(text string) (out []Device, err error) {
	const most = 1024
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), ", ")
		if len(f) != 4 || len(out) == most || !deviceName.MatchString(f[0]) {
			return nil, fmt.Errorf("nvidia-smi --query-gpu: unknown line %q", clip(line))
		}
		mib, err := strconv.ParseUint(f[3], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("nvidia-smi --query-gpu: memory of %q: want MiB", clip(f[3]))
		}
		out = append(out, Device{f[0], f[1], f[2], int64(mib) << 20})
	}
	return out, nil
}

// Reset resets a GPU. It fails while a process uses the GPU.
func (p Programs) Reset(ctx context.Context, uuid string) error {
	text, err := p.runSMI(ctx, "--gpu-reset", "-i", uuid)
	if err == nil && !strings.Contains(text, "successfully reset") {
		err = fmt.Errorf("nvidia-smi --gpu-reset: %q", clip(text))
	}
	return err
}

func (p Programs) runSMI(ctx context.Context, args ...string) (string, error) {
	c := command{name: p.smi(), args: args, limit: smiLimit}
	if p.runs != nil {
		return p.runs(ctx, c)
	}
	return c.run(ctx)
}

// list runs a command that lists things; there may be none.
func (p Programs) list(ctx context.Context, args ...string) (string, error) {
	text, err := p.runSMI(ctx, args...)
	if exit := (*ExitError)(nil); errors.As(err, &exit) {
		switch {
		case mig.Nothing(exit.Output):
			return "", nil
		case mig.Denied(exit.Output):
			err = fmt.Errorf("%w; run this as root, and in a container with NVIDIA_MIG_MONITOR_DEVICES=all", err)
		}
	}
	return text, err
}

// MIG reads the partitions of a GPU.
func (p Programs) MIG(ctx context.Context, uuid string) (*mig.GPU, error) {
	text, err := p.runSMI(ctx, "-q", "-x", "-i", uuid)
	if err != nil {
		return nil, err
	}
	g, devices, processes, err := mig.ParseQuery(text)
	if err != nil {
		return nil, err
	}
	if g.UUID != uuid {
		return nil, fmt.Errorf("nvidia-smi -q -x -i %s: it describes %q", uuid, clip(g.UUID))
	}
	g.Instances = []mig.Instance{}
	var uuids map[int]string
	if g.Enabled {
		if uuids, err = p.instances(ctx, &g); err != nil {
			return nil, err
		}
	}
	if err := g.Assign(devices, processes, uuids); err != nil {
		return nil, err
	}
	return &g, nil
}

// instances reads the profiles and instances of a GPU in MIG mode.
func (p Programs) instances(ctx context.Context, g *mig.GPU) (uuids map[int]string, err error) {
	var text [5]string
	for n, args := range [][]string{
		{"mig", "-i", g.UUID, "-lgip"}, {"mig", "-i", g.UUID, "-lgipp"}, {"mig", "-i", g.UUID, "-lgi"}, {"mig", "-i", g.UUID, "-lci"}, {"-L"},
	} {
		if text[n], err = p.list(ctx, args...); err != nil {
			return nil, err
		}
	}
	if g.Profiles, err = mig.ParseProfiles(text[0], text[1]); err != nil {
		return nil, err
	}
	found, err := mig.ParseInstances(text[2])
	if err != nil {
		return nil, err
	}
	g.Instances = append(g.Instances, found...)
	return mig.ParseUUIDs(text[4], g.UUID), mig.ParseCompute(text[3], g.Instances)
}

// Partition changes the partitions of a GPU.
type Partition struct {
	Programs Programs
	UUID     string
	Want     []string              // profiles; none: no instances
	Off      bool                  // end MIG mode
	Dir      string                // folder of the locks that keep two changes of a GPU apart
	Progress func(mig.Step, error) // called after each step
	Delay    time.Duration         // between attempts; a second by default

	undoing bool // the instances that go are those that this change has made
}

// Plan reads the state of the GPU and plans the steps.
func (p *Partition) Plan(ctx context.Context) (*mig.GPU, mig.Plan, error) {
	g, err := p.Programs.MIG(ctx, p.UUID)
	if err != nil {
		return nil, mig.Plan{}, err
	}
	plan, err := p.plan(g)
	return g, plan, err
}

func (p *Partition) plan(g *mig.GPU) (mig.Plan, error) {
	if p.Off {
		return mig.Off(g)
	}
	return mig.Make(g, p.Want)
}

// Apply carries out the steps. Before each that destroys, it looks again for processes.
// If a step fails, it goes back to the former mode and instances, as far as none is in use;
// the error says whether it could. New instances have new UUIDs. Only one at a time changes
// a GPU: the steps of two would undo each other.
func (p *Partition) Apply(ctx context.Context) (*mig.GPU, error) {
	unlock, err := p.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	before, plan, err := p.Plan(ctx)
	if err != nil {
		return nil, err
	}
	err = p.steps(ctx, plan)
	if err == nil && plan.Again { // the mode came first
		if _, plan, err = p.Plan(ctx); err == nil {
			err = p.steps(ctx, plan)
		}
	}
	if err != nil {
		return nil, p.undo(ctx, before, err)
	}
	after, err := p.Programs.MIG(ctx, p.UUID)
	if err != nil {
		return nil, fmt.Errorf("%s: the steps are done, but the result cannot be read: %w", p.UUID, err)
	}
	if left, err := p.plan(after); err != nil || len(left.Steps) > 0 {
		err = errors.Join(fmt.Errorf("%s: nvidia-smi reported success, but steps remain: %v", p.UUID, left.Steps), err)
		return nil, p.undo(ctx, before, err)
	}
	return after, nil
}

// lock keeps another process from a change of the GPU.
func (p *Partition) lock() (unlock func(), err error) {
	if err := os.MkdirAll(p.Dir, 0o711); err != nil {
		return nil, err
	}
	lock, err := dirlock.Lock(p.Dir, "partition-"+p.UUID+".lock")
	if held := (*dirlock.HeldError)(nil); errors.As(err, &held) {
		return nil, fmt.Errorf("%s: process %d changes its partitions: wait for its end", p.UUID, held.PID)
	}
	if err != nil {
		return nil, err
	}
	return func() { _ = lock.Close() }, nil
}

func (p *Partition) steps(ctx context.Context, plan mig.Plan) error {
	for _, s := range plan.Steps {
		err := p.step(ctx, s)
		if p.Progress != nil {
			p.Progress(s, err)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

func (p *Partition) step(ctx context.Context, s mig.Step) error {
	switch s.Verb {
	case mig.EnableMode:
		return p.mode(ctx, "1")
	case mig.DisableMode:
		return p.mode(ctx, "0")
	case mig.Destroy:
		if err := p.unused(ctx, s.Instance); err != nil {
			return err
		}
		for _, c := range s.Compute {
			if _, err := p.try(ctx, "mig", "-i", p.UUID, "-dci", "-gi", strconv.Itoa(s.Instance), "-ci", strconv.Itoa(c)); err != nil {
				return err
			}
		}
		_, err := p.try(ctx, "mig", "-i", p.UUID, "-dgi", "-gi", strconv.Itoa(s.Instance))
		return err
	case mig.Create:
		return p.create(ctx, s)
	}
	return fmt.Errorf("unknown step %q", s.Verb)
}

func (p *Partition) create(ctx context.Context, s mig.Step) error {
	args := []string{"mig", "-i", p.UUID, "-cgi", fmt.Sprintf("%d:%d", s.ID, s.Start)}
	if s.Parts == nil {
		_, err := p.try(ctx, append(args, "-C")...)
		return err
	}
	text, err := p.try(ctx, args...)
	if err != nil || len(s.Parts) == 0 {
		return err
	}
	instance, err := mig.ParseCreated(text)
	if err != nil {
		return err
	}
	var profiles, places []string
	for _, part := range s.Parts {
		profiles = append(profiles, strconv.Itoa(part.Profile))
		places = append(places, fmt.Sprintf("%d:%d", part.Profile, part.Start))
	}
	in := strconv.Itoa(instance)
	_, err = p.try(ctx, "mig", "-i", p.UUID, "-cci", strings.Join(places, ","), "-gi", in)
	if exit := (*ExitError)(nil); errors.As(err, &exit) && exit.Code == badArgument {
		// A driver that takes no places gives them out in this order, from the first slice on.
		_, err = p.try(ctx, "mig", "-i", p.UUID, "-cci", strings.Join(profiles, ","), "-gi", in)
	}
	return err
}

// mode changes the mode. nvidia-smi reports success too when the change waits for a
// reset of the GPU.
func (p *Partition) mode(ctx context.Context, to string) error {
	g, err := p.Programs.MIG(ctx, p.UUID)
	if err != nil {
		return err
	}
	if err := g.InUse(); err != nil {
		return err
	}
	if _, err := p.try(ctx, "-i", p.UUID, "-mig", to); err != nil {
		return err
	}
	if g, err = p.Programs.MIG(ctx, p.UUID); err == nil && g.Enabled != g.Pending {
		err = mig.ResetError{GPU: p.UUID}
	}
	return err
}

// unused checks that no process uses an instance. A process may begin after it: the
// driver refuses to destroy an instance in use.
func (p *Partition) unused(ctx context.Context, instance int) error {
	g, err := p.Programs.MIG(ctx, p.UUID)
	if err != nil {
		return err
	}
	e := &mig.BusyError{GPU: p.UUID, Processes: g.Busy, Untold: g.Untold && !p.undoing}
	if n := slices.IndexFunc(g.Instances, func(i mig.Instance) bool { return i.ID == instance && len(i.Busy) > 0 }); n >= 0 {
		e.Instances = g.Instances[n : n+1]
	}
	if len(e.Instances)+len(e.Processes) > 0 || e.Untold {
		return e
	}
	return nil
}

// try runs nvidia-smi again while it says that something is in use.
func (p *Partition) try(ctx context.Context, args ...string) (string, error) {
	delay := p.Delay
	if delay == 0 {
		delay = inUseDelay
	}
	for n := 1; ; n++ {
		text, err := p.Programs.runSMI(ctx, args...)
		exit := (*ExitError)(nil)
		if err == nil || !errors.As(err, &exit) || !mig.InUse(text) || n == inUseTries {
			return text, err
		}
		timer := time.NewTimer(delay)
		select {
		case <-ctx.Done():
			timer.Stop()
			return "", context.Cause(ctx)
		case <-timer.C:
		}
	}
}

// undo goes back to the former mode and instances, even when ctx is done. A mode that changes
// with the next reset stays pending: the cause says what to do.
func (p *Partition) undo(ctx context.Context, before *mig.GPU, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	p.undoing = true
	defer func() { p.undoing = false }()
	former := *before
	now, err := p.Programs.MIG(ctx, p.UUID)
	if err == nil {
		if errors.As(cause, new(mig.ResetError)) {
			former.Enabled, former.Pending = now.Enabled, now.Pending
		}
		if mig.Same(now, &former) {
			return fmt.Errorf("%w; the former instances are in place", cause)
		}
		err = p.steps(ctx, mig.Restore(now, &former))
	}
	if err == nil {
		if now, err = p.Programs.MIG(ctx, p.UUID); err == nil && !mig.Same(now, &former) {
			err = errors.New("other instances than before are left")
		}
	}
	if err != nil {
		return fmt.Errorf("%w; the way back failed too: %w; \"dxpu share partition\" shows what is left", cause, err)
	}
	return fmt.Errorf("%w; the former instances are in place, with new UUIDs where they had to be created again", cause)
}
