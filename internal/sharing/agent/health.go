//go:build linux

package agent

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/pool/gpuerr"
	"github.com/dxpu-project/dxpu/internal/sharing/broker"
)

const (
	// healthPeriod is the time between two looks at a GPU that is out of service.
	healthPeriod = time.Second
	// resetPause is the time between two resets that failed.
	resetPause = 30 * time.Second
	// maxRecord bounds a record of the kernel log: it has 8 KiB at most.
	maxRecord = 16 << 10
	// maxCodes bounds the codes of errors that are counted for each GPU.
	maxCodes = 256
)

// patient is the health of a GPU.
type patient struct {
	gpuerr.Health
	address string // as the kernel log has it
	errors  map[uint32]uint64
	tried   time.Time // last reset
	missing string    // why; "": it is here
	looks   int       // that found the opposite, one after the other
	known   bool      // it was here since the start of the agent, or is to be

	resetting bool // looks say nothing of it
}

// addressOf returns the PCI address of a GPU without its function, "" if it has none.
func addressOf(g *broker.GPU) string {
	if g.Domain == 0 && g.Address == 0 {
		return ""
	}
	return fmt.Sprintf("%04x:%02x:%02x", g.Domain, g.Address>>8, g.Address>>3&31)
}

func newPatients(c *Config) []*patient {
	var out []*patient
	for i := range c.Broker.GPUs {
		out = append(out, newPatient(c, &c.Broker.GPUs[i]))
	}
	return out
}

// newPatient returns the health of a GPU that is here.
func newPatient(c *Config, g *broker.GPU) *patient {
	return &patient{address: addressOf(g), Health: gpuerr.Health{Backoff: c.Backoff}, errors: map[uint32]uint64{}, known: true}
}

// kernelMessage returns the text of a record of /dev/kmsg, if the kernel itself wrote it: a
// program may write there, and gets another facility.
func kernelMessage(record string) (string, bool) {
	head, text, ok := strings.Cut(record, ";")
	prefix, _, _ := strings.Cut(head, ",")
	n, err := strconv.ParseUint(prefix, 10, 32)
	return text, ok && err == nil && n>>3 == 0
}

// watchLog hands on the XIDs of the kernel log until it is closed. No program can write
// them: they begin the record of a kernel message.
func watchLog(ctx context.Context, log io.Reader, out chan<- gpuerr.Message) error {
	in := bufio.NewReaderSize(log, maxRecord)
	for {
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, unix.EPIPE), errors.Is(err, bufio.ErrBufferFull):
			continue // records were lost, or one is too long
		case err != nil && ctx.Err() != nil:
			return nil
		case errors.Is(err, io.EOF):
			return nil // of a file, for tests
		case err != nil:
			return fmt.Errorf("kernel log: %w", err)
		}
		text, ok := kernelMessage(string(bytes.TrimRight(line, "\n")))
		if !ok || !strings.HasPrefix(text, "NVRM: Xid (") {
			continue
		}
		if m, ok := gpuerr.ParseLog(text); ok {
			select {
			case out <- m:
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// watchHealth takes GPUs with errors out of service, resets them when their programs have
// ended, and returns them.
func (a *Agent) watchHealth(ctx context.Context, messages <-chan gpuerr.Message) error {
	tick := time.NewTicker(healthPeriod)
	defer tick.Stop()
	for {
		for i := range a.count() {
			a.treat(ctx, i)
		}
		select {
		case m := <-messages:
			a.xid(m)
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// xid takes an error of a GPU.
func (a *Agent) xid(m gpuerr.Message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, p := range a.patients {
		if p.address == "" || p.address != m.Address {
			continue
		}
		if len(p.errors) < maxCodes || p.errors[m.Code] > 0 {
			p.errors[m.Code]++
		}
		action, _ := p.Report(time.Now(), m.Code, 1)
		var shares []string
		if action == gpuerr.RestartApplication {
			shares = a.broker.EndProcess(a.now(), i, m.PID, defaultGrace)
			a.flushLocked()
		}
		a.config.Log.Warn("error of a GPU", "gpu", a.config.Broker.GPUs[i].Name, "error", gpuerr.Lookup(m.Code).String(), "action", action.String(), "pid", m.PID, "shares", shares)
		signal(a.save)
	}
}

// treat does what the health of a GPU requires now.
func (a *Agent) treat(ctx context.Context, i int) {
	a.mu.Lock()
	p, gpu := a.patients[i], a.config.Broker.GPUs[i]
	service, why := p.Service(time.Now())
	if service == gpuerr.InService || p.missing != "" {
		a.mu.Unlock()
		return
	}
	if a.broker.Stopped(i) == "" {
		a.config.Log.Error("GPU is out of service", "gpu", gpu.Name, "error", why.String())
	}
	a.broker.Stop(a.now(), i, why.String(), defaultGrace)
	signal(a.changed)
	a.flushLocked()
	due := service == gpuerr.ResetDue && !a.broker.Busy(i) && time.Since(p.tried) >= resetPause
	if due {
		p.tried, p.resetting = time.Now(), true
	}
	a.mu.Unlock()
	if !due {
		return
	}
	err := a.reset(ctx, gpu)
	a.mu.Lock()
	defer a.mu.Unlock()
	p.resetting = false
	if err != nil {
		a.config.Log.Error("GPU is not reset", "gpu", gpu.Name, "error", err, "again_in", resetPause.String())
		return
	}
	if p.Reset(time.Now()) && p.missing == "" {
		a.broker.Start(i)
		signal(a.changed)
		a.config.Log.Info("GPU is in service again, after a reset", "gpu", gpu.Name)
	}
	signal(a.save)
}

func (a *Agent) reset(ctx context.Context, gpu broker.GPU) error {
	if a.config.Reset == nil {
		return errors.New(`the agent cannot reset it: repair it, and run "dxpu share repair"`)
	}
	return a.config.Reset(ctx, gpu)
}

// repair returns a GPU to service that a person has repaired. Only root may say that.
func (a *Agent) repair(r *http.Request) (any, error) {
	p, ok := r.Context().Value(peerKey{}).(peer)
	if !ok || p.Uid != 0 && int(p.Uid) != a.uid {
		return nil, errors.New("only root may return a GPU to service")
	}
	name := r.PathValue("name")
	a.mu.Lock()
	defer a.mu.Unlock()
	i := indexOf(a.config.Broker.GPUs, name)
	if i < 0 {
		return nil, fmt.Errorf("no GPU %q", name)
	}
	if why := a.patients[i].missing; why != "" {
		return nil, fmt.Errorf("GPU %s is missing: %s", name, why)
	}
	a.patients[i].Repair(time.Now())
	a.broker.Start(i)
	signal(a.changed)
	signal(a.save)
	return struct{}{}, nil
}

// restoreHealthLocked takes over what a former agent knew of the GPUs.
func (a *Agent) restoreHealthLocked(f *file) {
	for i, p := range a.patients {
		if h := f.Health[a.config.Broker.GPUs[i].Name]; h != nil {
			backoff := p.Backoff
			p.Health = *h
			p.Backoff = backoff
			p.Clamp(time.Now())
		}
	}
}

// healthLocked returns what the state file has of the GPUs.
func (a *Agent) healthLocked() map[string]*gpuerr.Health {
	out := map[string]*gpuerr.Health{}
	for i, p := range a.patients {
		if h := p.Health; h.Known() {
			out[a.config.Broker.GPUs[i].Name] = &h
		}
	}
	return out
}

// stateLocked says whether a GPU is in service, and why it is not.
func (a *Agent) stateLocked(i int) (state, why string, until time.Time) {
	p := a.patients[i]
	if p.missing != "" {
		return "missing", p.missing, time.Time{}
	}
	service, class := p.Service(time.Now())
	if service != gpuerr.InService {
		why = class.String()
	}
	if service == gpuerr.OutOfService {
		until = p.Wake()
	}
	return service.String(), why, until
}
