package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/localpool"
	"github.com/dxpu-project/dxpu/internal/quantile"
)

// The second chapter: one GPU, divided into slices, for two hosts.
const (
	sharedBox   = "box-c"
	sharedModel = "Shared GPU"
	sharedParts = 4 // one of them is held back as a spare
	secondHost  = "host-2"
	// requestTime is how long requests are measured.
	requestTime = 2 * time.Second
)

// sharing is the state of the second chapter.
type sharing struct {
	host   *embeddedHost
	leases []string
	beside *dxpuv1.Binding // slice of the first host
	bus    driver.Bus      // slice of the second host
	dev    *driver.Device
	stream *driver.Stream
}

// startShared starts a box with a divided GPU, and a second host.
func (d *demo) startShared(ctx context.Context) (string, error) {
	err := d.procs.Start(sharedBox, "box", "--manager", d.url, "--name", sharedBox, "--gpus", "1", "--slices", fmt.Sprint(sharedParts), "--model", sharedModel,
		"--admin-listen", "127.0.0.1:0", "--allow-faults", "--admin-url-file", d.procs.Path(sharedBox+".url"))
	if err != nil {
		return "", err
	}
	if d.shared.host, err = d.newEmbedded(secondHost); err != nil {
		return "", err
	}
	err = localpool.Poll(ctx, func() (bool, error) {
		pool, err := d.api.GetPool(ctx, connect.NewRequest(&dxpuv1.GetPoolRequest{}))
		if err != nil {
			return false, err
		}
		host, err := d.api.GetHost(ctx, connect.NewRequest(&dxpuv1.GetHostRequest{HostId: secondHost}))
		return pool.Msg.Pool.Gpus == 2*gpusPerBox+sharedParts && err == nil && host.Msg.GetHost().GetNode().GetConnected(), nil
	})
	return fmt.Sprintf("%d slices of %d %% of one GPU in %s, each with memory of its own", sharedParts, 100/sharedParts, sharedBox), err
}

// leaseSlices gives each host a slice of the same GPU.
func (d *demo) leaseSlices(ctx context.Context) (string, error) {
	var lines []string
	for _, host := range []string{hostName, secondHost} {
		res, err := d.api.CreateLease(ctx, connect.NewRequest(&dxpuv1.CreateLeaseRequest{Spec: &dxpuv1.LeaseSpec{
			Count: 1, HostId: host, Model: fmt.Sprintf("%s 1/%d", sharedModel, sharedParts),
		}}))
		if err != nil {
			return "", err
		}
		id := res.Msg.GetLease().GetId()
		d.shared.leases = append(d.shared.leases, id)
		b, err := d.activeOf(ctx, id)
		if err != nil {
			return "", err
		}
		if host == hostName {
			d.shared.beside = b
		}
		lines = append(lines, fmt.Sprintf("%s -> %s slot %d", b.GpuId, b.HostId, b.HostSlot))
	}
	if _, err := d.pc.sees(ctx, true); err != nil {
		return "", err
	}
	return strings.Join(lines, "\n"), d.shared.open(ctx)
}

// open opens the slice of the second host.
func (s *sharing) open(ctx context.Context) (err error) {
	if s.bus, err = s.host.front.Open(0); err != nil {
		return err
	}
	if s.dev, err = driver.Open(ctx, s.bus, driver.Options{}); err != nil {
		return err
	}
	s.stream, err = s.dev.NewStream()
	return err
}

// requests measures requests of the second host: a kernel and its result.
func (s *sharing) requests(ctx context.Context, until func() bool) (p99 time.Duration, n int, err error) {
	var took []time.Duration
	for i := 0; !until() || i == 0; i++ {
		at := time.Now()
		got := make([]byte, 4)
		err := s.stream.Launch(ctx, reg.Launch{Kernel: reg.KernelWrite, Type: reg.FP32, C: 0, M: 1 << 18, Alpha: 1})
		if err == nil {
			err = s.stream.Download(ctx, got, driver.Ptr(4*(1<<18-1)))
		}
		if err == nil && got[3] != 0x3f { // the highest byte of 1.0
			err = fmt.Errorf("request %d: the kernel's result is % x", i, got)
		}
		if err != nil {
			return 0, 0, err
		}
		took = append(took, time.Since(at))
	}
	slices.Sort(took)
	return quantile.Of(took, 0.99), len(took), nil
}

// measureSlices measures the second host's requests alone, and while the first host's
// program works on the other slice.
func (d *demo) measureSlices(ctx context.Context) (string, error) {
	end := time.Now().Add(requestTime)
	alone, n, err := d.shared.requests(ctx, func() bool { return time.Now().After(end) })
	if err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	var out strings.Builder
	go func() { ended <- d.pc.test(ctx, &out) }()
	var tested error
	over := false
	beside, m, err := d.shared.requests(ctx, func() bool {
		select {
		case tested = <-ended:
			over = true
		default:
		}
		return over
	})
	if !over {
		tested = <-ended
	}
	if err = errors.Join(err, tested); err != nil {
		return "", err
	}
	d.figure("p99 of a request on a slice, alone", alone)
	d.figure("p99 of a request on a slice, the other host's program works", beside)
	return fmt.Sprintf("%s: p99 %.1f ms of %d requests alone; %.1f ms of %d while the program of %s ran on the other slice (%s)",
		secondHost, milliseconds(alone), n, milliseconds(beside), m, hostName, lastLine(out.String())), nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// failSlice makes the first host's slice fail; the second host's works on.
func (d *demo) failSlice(ctx context.Context) (string, error) {
	admin, err := os.ReadFile(d.procs.Path(sharedBox + ".url"))
	if err != nil {
		return "", err
	}
	if err := inject(ctx, strings.TrimSpace(string(admin)), d.shared.beside.BoxSlot); err != nil {
		return "", err
	}
	err = localpool.Poll(ctx, func() (bool, error) {
		lease, err := d.getLease(ctx, d.shared.leases[0])
		if err != nil {
			return false, err
		}
		for _, b := range lease.Bindings {
			if b.GpuId == d.shared.beside.GpuId && b.State == dxpuv1.BindingState_BINDING_STATE_ATTACHED {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return "", err
	}
	end := time.Now().Add(requestTime / 2)
	_, n, err := d.shared.requests(ctx, func() bool { return time.Now().After(end) })
	return fmt.Sprintf("%s is lost; %s completed %d requests afterwards, all correct", d.shared.beside.GpuId, secondHost, n), err
}

// endShared deletes the leases of both hosts and waits until the slices are free.
func (d *demo) endShared(ctx context.Context) (string, error) {
	if err := d.shared.close(); err != nil {
		return "", err
	}
	for _, id := range d.shared.leases {
		if _, err := d.api.DeleteLease(ctx, connect.NewRequest(&dxpuv1.DeleteLeaseRequest{LeaseId: id})); err != nil {
			return "", err
		}
		err := localpool.Poll(ctx, func() (bool, error) {
			lease, err := d.getLease(ctx, id)
			return lease.GetState() == dxpuv1.LeaseState_LEASE_STATE_RELEASED, err
		})
		if err != nil {
			return "", err
		}
	}
	return "unplugged, reset and scrubbed", nil
}

// close closes the device of the second host. It may be repeated.
func (s *sharing) close() error {
	var errs []error
	if s.stream != nil {
		errs = append(errs, s.stream.Close())
	}
	if s.dev != nil {
		errs = append(errs, s.dev.Close())
	}
	if s.bus != nil {
		errs = append(errs, s.bus.Close())
	}
	s.stream, s.dev, s.bus = nil, nil, nil
	return errors.Join(errs...)
}
