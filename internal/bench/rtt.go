package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/quantile"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
)

// Split is the round trip of a register read in the three parts of the paper's
// section 4.3 (Table 7), in microseconds.
type Split struct {
	// Original is the read with the device right below the root port: the time of
	// host and device alone.
	Original float64 `json:"original_us"`
	// Network is the bare ping-pong of datagrams of the same sizes between ends that
	// never sleep: wake-ups are not a part of the network.
	Network float64 `json:"network_us"`
	// Conversion is the rest: TLPs to datagrams and back, the link's protocol
	// (acknowledgements, cipher, checksums), and the wake-ups of readers.
	Conversion float64 `json:"conversion_us"`
	Total      float64 `json:"total_us"`
	// Paper has the same parts of the paper's hardware.
	Paper *Split `json:"paper,omitempty"`
}

var paperSplit = Split{Original: 1.2, Network: 1.9, Conversion: 3.7, Total: 6.8}

// Value of the scratch register that is read.
const readPattern = 0x5a17_0000

// RTT measures a register read: p50, p90 and p99 of the round trip.
func RTT(ctx context.Context, o Options) (report *Report, err error) {
	o = o.withDefaults()
	r := &rttRun{opts: &o}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	stop, err := o.startNeighbour(ctx)
	if err != nil {
		return nil, err
	}
	r.closers = append(r.closers, stop)
	if err := r.run(); err != nil {
		return nil, err
	}
	return r.report(), nil
}

type rttRun struct {
	opts    *Options
	mtu     int
	sizes   [2]int // of the datagrams of a read: request, answer
	probes  []rttProbe
	tunnel  int // probe of the tunnel; 0: none
	closers []func() error
}

// rttProbe is one kind of round trip.
type rttProbe struct {
	name    string
	call    func() error
	locked  bool      // its goroutine keeps its thread, which blocks or polls
	samples []float64 // µs, of all rounds
	p50     []float64 // of each round
}

// Indices of rttRun.probes.
const (
	rttNative = iota
	rttEmbedded
	rttVM
	rttServer
	rttServerBox
	rttUDP
	rttUDPBlock
	rttUnix
	rttUnixBlock
	rttUDPSpin
	rttUDPPoll  // only if the proxies poll
	rttUnixPoll // only if the proxies poll
)

func (r *rttRun) close() error {
	var errs []error
	for i := len(r.closers) - 1; i >= 0; i-- {
		errs = append(errs, r.closers[i]())
	}
	return errors.Join(errs...)
}

func (r *rttRun) open(ctx context.Context) error {
	_, nativeDev, err := newNative(ctx)
	if err != nil {
		return err
	}
	r.add("native: embedded host, no network", readRegister(nativeDev.Device))
	var here *pair
	for _, side := range []struct {
		name string
		vm   bool
	}{{"embedded host, remote GPU", false}, {"vfio-user client, remote GPU", true}} {
		p, dev, err := r.opts.ready(ctx, pairSpec{slots: 1, vm: side.vm})
		if err != nil {
			return err
		}
		if !side.vm {
			here = p
		}
		r.closers = append(r.closers, p.close, dev.close)
		r.mtu = p.mtu
		r.add(side.name, readRegister(dev.Device))
	}
	if err := r.measureSizes(here); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "dxpu")
	if err != nil {
		return err
	}
	r.closers = append(r.closers, func() error { return os.RemoveAll(dir) })
	if err := r.openServers(ctx, dir); err != nil {
		return err
	}
	if err := r.openBare(ctx, dir); err != nil {
		return err
	}
	return r.openTunnel(ctx, dir)
}

func (r *rttRun) add(name string, call func() error) {
	r.probes = append(r.probes, rttProbe{name: name, call: call})
}

// readRegister returns a function that reads a scratch register and checks its value.
func readRegister(dev *driver.Device) func() error {
	regs := dev.Registers()
	var want uint32 = readPattern
	regs.Write32(reg.Scratch, want)
	reads := 0
	return func() error {
		if got := regs.Read32(reg.Scratch); got != want {
			return fmt.Errorf("read %#x from the register, want %#x", got, want)
		}
		if reads++; reads%1024 == 0 { // change the value
			want++
			regs.Write32(reg.Scratch, want)
		}
		return nil
	}
}

// measureSizes determines the sizes of the datagrams from the counters of the socket.
func (r *rttRun) measureSizes(p *pair) error {
	const reads = 200
	before := p.host.fabric.Stats().Paths[0]
	for range reads {
		if err := r.probes[rttEmbedded].call(); err != nil {
			return err
		}
	}
	after := p.host.fabric.Stats().Paths[0]
	r.sizes[0] = int((after.TxBytes - before.TxBytes) / max(1, after.TxDatagrams-before.TxDatagrams))
	r.sizes[1] = int((after.RxBytes - before.RxBytes) / max(1, after.RxDatagrams-before.RxDatagrams))
	return nil
}

func (r *rttRun) openBare(ctx context.Context, dir string) error {
	far, err := r.opts.spawn(ctx, memberSpec{Kind: kindEcho, SocketDirs: []string{dir}, Polling: r.opts.Polling})
	if err != nil {
		return err
	}
	r.closers = append(r.closers, far.stop)
	kinds := []string{echoUDP, echoUDPBlock, echoUnix, echoUnixBlock, echoUDPSpin}
	if r.opts.Polling != (reader.Polling{}) {
		kinds = append(kinds, echoUDPPoll, echoUnixPoll)
	}
	for _, kind := range kinds {
		there, back := r.sizes[0], r.sizes[1]
		if kind == echoUnix || kind == echoUnixBlock || kind == echoUnixPoll {
			there, back = unixRequest, unixAnswer
		}
		polling := r.opts.Polling
		if kind == echoUnixPoll { // the near end is a VMM, which sleeps, as the client of the measurement does
			polling = r.opts.driverPolling()
		}
		c, err := newCaller(kind, far.hello.Echo[kind], there, back, polling)
		if err != nil {
			return err
		}
		r.closers = append(r.closers, func() error {
			c.close()
			return nil
		})
		r.add(fmt.Sprintf("bare ping-pong: %s, %d B there, %d B back", kind, there, back), c.call)
		r.probes[len(r.probes)-1].locked = kind != echoUDP && kind != echoUnix
	}
	return nil
}

func (r *rttRun) run() error {
	for round := range r.opts.Rounds {
		for i := range r.probes {
			p := &r.probes[i]
			r.opts.Progress("round %d of %d: %s", round+1, r.opts.Rounds, p.name)
			samples, err := timeEach(r.opts.Duration, p.call, p.locked)
			if err != nil {
				return fmt.Errorf("bench: %s: %w", p.name, err)
			}
			p.samples = append(p.samples, samples...)
			p.p50 = append(p.p50, median(samples))
		}
	}
	return nil
}

// timeEach repeats call for about a duration and returns the time of each call in
// µs. locked: see rttProbe.
func timeEach(d time.Duration, call func() error, locked bool) ([]float64, error) {
	if locked {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	var samples []float64
	for start, last := time.Now(), time.Now(); ; {
		if err := call(); err != nil {
			return nil, err
		}
		now := time.Now()
		samples = append(samples, float64(now.Sub(last).Nanoseconds())/1e3)
		if now.Sub(start) >= d {
			return samples, nil
		}
		last = now
	}
}

func (r *rttRun) report() *Report {
	out := r.opts.report("rtt", r.mtu)
	for i := range r.probes {
		p := &r.probes[i]
		f := Figure{
			Name: p.name, Unit: Microseconds, Value: quantile.Of(p.samples, 0.5), P90: quantile.Of(p.samples, 0.9), P99: quantile.Of(p.samples, 0.99),
			Low: quantile.Of(p.p50, 0), High: quantile.Of(p.p50, 1),
		}
		switch i {
		case rttEmbedded:
			f = f.beside("bare UDP", p.p50, r.bare(false))
		case rttVM:
			f = f.beside("bare UDP + bare UNIX", p.p50, r.bare(true))
		case rttServerBox:
			f = r.besideServers(f)
		}
		out.Figures = append(out.Figures, f)
	}
	total := out.Figures[rttEmbedded].Value
	s := Split{
		Original: out.Figures[rttNative].Value, Network: out.Figures[rttUDPSpin].Value,
		Total: total, Paper: &paperSplit,
	}
	s.Conversion = max(0, total-s.Original-s.Network)
	out.Split = &s
	out.Notes = append(out.Notes,
		"the bare limit of a round is the fastest of its ping-pongs: Go's sockets, blocking calls in separate threads, and with --spin polled sockets")
	if r.tunnel > 0 {
		out.Notes = append(out.Notes, fmt.Sprintf("the registers of the remote device server take %.2f of their time through the tunnel", r.besidePolled(rttServerBox, r.tunnel)))
	}
	if r.opts.Polling != (reader.Polling{}) && r.opts.Polling.Spin == 0 {
		out.Notes = append(out.Notes, fmt.Sprintf("beside ping-pongs that poll like the proxies, the ratios are %.2f (embedded host) and %.2f (vfio-user client, which sleeps)",
			r.besidePolled(rttEmbedded, rttUDPPoll), r.besidePolled(rttVM, rttUDPPoll, rttUnixPoll)))
	}
	return out
}

// bare returns the limit of each round.
func (r *rttRun) bare(unixToo bool) []float64 {
	udp, stream := []int{rttUDP, rttUDPBlock}, []int{rttUnix, rttUnixBlock}
	if r.opts.Polling.Spin > 0 {
		udp, stream = append(udp, rttUDPPoll), append(stream, rttUnixPoll)
	}
	out := make([]float64, r.opts.Rounds)
	for i := range out {
		out[i] = r.fastest(i, udp...)
		if unixToo {
			out[i] += r.fastest(i, stream...)
		}
	}
	return out
}

// besidePolled returns the median of the rounds' ratios to the sum of some bare probes.
func (r *rttRun) besidePolled(probe int, bare ...int) float64 {
	ratios := make([]float64, r.opts.Rounds)
	for i := range ratios {
		sum := 0.0
		for _, b := range bare {
			sum += r.probes[b].p50[i]
		}
		ratios[i] = r.probes[probe].p50[i] / sum
	}
	return median(ratios)
}

// fastest returns the smallest time of some probes in a round.
func (r *rttRun) fastest(round int, probes ...int) float64 {
	best := math.Inf(1)
	for _, i := range probes {
		best = min(best, r.probes[i].p50[round])
	}
	return best
}
