package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
	"github.com/dxpu-project/dxpu/internal/hostproxy"
)

// embeddedHost is a host proxy in this process with a root complex in Go in place of
// the VM.
type embeddedHost struct {
	front *hostproxy.Embedded
	stop  []func()
	log   *os.File
}

func (d *demo) startEmbedded() (computer, error) {
	log, err := os.Create(d.path(hostName + ".log"))
	if err != nil {
		return nil, err
	}
	e := &embeddedHost{front: hostproxy.NewEmbedded(hostproxy.EmbeddedSpec{}), log: log}
	logger := slog.New(slog.NewTextHandler(log, nil))
	f, err := netio.Open(netio.Config{Paths: []netio.PathConfig{{Listen: "127.0.0.1:0"}}, Logger: logger})
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	h, err := hostproxy.New(hostproxy.Config{Slots: vmSlots, Front: e.front, Fabric: f, Domain: "embedded", Logger: logger})
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	a, err := agent.New(agent.Config{Manager: d.url, JoinToken: d.token, Kind: dxpuv1.NodeKind_NODE_KIND_HOST, Name: hostName, Log: logger}, h)
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	h.OnChange(a.Changed)
	// They end in this order: the proxy sends a last message to the box.
	for _, run := range []func(context.Context) error{a.Run, h.Run, f.Run} {
		e.stop = append(e.stop, background(run, logger))
	}
	return e, nil
}

// background runs f in a goroutine. stop cancels it and waits for its end.
func background(f func(context.Context) error, log *slog.Logger) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f(ctx); err != nil {
			log.Error("a part of the proxy failed", "err", err)
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

func (e *embeddedHost) name() string { return "embedded host (a root complex in Go, in this process)" }

func (e *embeddedHost) sees(ctx context.Context, present bool) (string, error) {
	var found string
	err := poll(ctx, func() (bool, error) {
		bus, err := e.front.Open(0)
		if err != nil {
			return !present, nil
		}
		found = fmt.Sprintf("%v: %08x", bus.Function().ID, bus.ConfigRead32(0))
		return present, bus.Close()
	})
	return found, err
}

func (e *embeddedHost) test(ctx context.Context, out io.Writer) error {
	bus, err := e.front.Open(0)
	if err != nil {
		return err
	}
	defer bus.Close()
	dev, err := driver.Open(ctx, bus, driver.Options{})
	if err != nil {
		return err
	}
	report, err := dev.SelfTest(ctx, out, driver.SelfTestOptions{Quick: true})
	if err != nil {
		_, _ = fmt.Fprintln(out, err)
		return errors.Join(err, dev.Close())
	}
	if !report.OK {
		return errors.Join(errors.New("a check failed"), dev.Close())
	}
	_, _ = fmt.Fprintf(out, "%d checks passed in %v; %d interrupts, %d stale\n",
		len(report.Checks), report.Duration.Round(time.Millisecond), report.Interrupts, report.Stale)
	return dev.Close()
}

// bootID returns the process ID: the embedded host boots with this process.
func (e *embeddedHost) bootID(context.Context) (string, error) {
	return fmt.Sprintf("process %d", os.Getpid()), nil
}

func (e *embeddedHost) close() error {
	for _, stop := range e.stop {
		stop()
	}
	return e.log.Close()
}
