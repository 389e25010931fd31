package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/link"
)

// defaultSize is the size of one copy: much more than the bytes in flight, much less
// than the bytes of a short round.
const defaultSize = 8 << 20

// dmaTags is the number of reads that the GPU keeps in flight: the limit of 8-bit
// tags, a mebibyte with reads of 4 KiB.
const dmaTags = 256

// dmaCase is one kind of host with one choice of sizes in Device Control.
type dmaCase struct {
	name string
	pairSpec
}

func dmaCases() []dmaCase {
	var out []dmaCase
	for _, s := range []sizes{{4096, 4096}, {128, 512}} { // the second: of guests in QEMU
		for _, vm := range []bool{false, true} {
			front := "embedded host"
			if vm {
				front = "vfio-user, shared memory"
			}
			out = append(out, dmaCase{fmt.Sprintf("%s, MPS %d, MRRS %d", front, s.mps, s.mrrs), pairSpec{slots: 1, gpu: gpu.Spec{Tags: dmaTags}, control: s, vm: vm}})
		}
	}
	return out
}

// DMA measures copies between host memory and the GPU, beside UDP that only moves
// the same bytes with the same cipher and checksum, and beside TCP. It also measures the copy by posted writes of the CPU (paper,
// section 5.1), over a range of round trips.
func DMA(ctx context.Context, o Options) (report *Report, err error) {
	o = o.withDefaults()
	var closers []func() error
	defer func() {
		for i := len(closers) - 1; i >= 0; i-- {
			err = errors.Join(err, closers[i]())
		}
	}()
	var probes []probe
	var names []string
	mtu := 0
	for _, c := range dmaCases() {
		p, dev, err := o.ready(ctx, c.pairSpec)
		if err != nil {
			return nil, err
		}
		closers = append(closers, p.close, dev.close)
		mtu = p.mtu
		cp, err := newCopier(ctx, dev.Device, o.Size)
		if err != nil {
			return nil, err
		}
		names = append(names, "device to host, "+c.name, "host to device, "+c.name, "CPU writes, "+c.name)
		probes = append(probes, deviceToHost.probe("device to host, "+c.name, cp), hostToDevice.probe("host to device, "+c.name, cp),
			cpuWrites.probe("CPU writes, "+c.name, cp))
	}
	source := make([]byte, o.Size)
	pattern(source, 1)
	for _, memory := range []bool{false, true} {
		for _, cipher := range []link.Cipher{o.Cipher, link.CipherNone} {
			b, err := newBulkUDP(cipher, mtu, source, memory)
			if err != nil {
				return nil, err
			}
			closers = append(closers, b.close)
			probes = append(probes, probe{bareUDP(cipher, memory), b.run})
		}
	}
	tcp, err := newBulkTCP(source)
	if err != nil {
		return nil, err
	}
	closers = append(closers, tcp.close)
	probes = append(probes, probe{"bare TCP", tcp.run})
	values, err := o.alternate(probes)
	if err != nil {
		return nil, err
	}
	report = o.report("dma", mtu)
	bare := len(names)
	limit := bare + 2 // with the copies in memory, with the same cipher
	for i, name := range names {
		report.Figures = append(report.Figures, figure(name, GigabytesSecond, values[i]).beside(probes[limit].name, values[i], values[limit]))
	}
	for i := bare; i < len(probes); i++ {
		if slices.ContainsFunc(probes[bare:i], func(p probe) bool { return p.name == probes[i].name }) {
			continue // the option is no cipher: already measured
		}
		f := figure(probes[i].name, GigabytesSecond, values[i])
		if at := i - bare; at == 2 || at == 3 { // with the copies in memory
			f = f.beside(probes[i-2].name, values[i], values[i-2])
		}
		report.Figures = append(report.Figures, f)
	}
	if err := o.overRoundTrips(ctx, report); err != nil {
		return nil, err
	}
	report.Notes = append(report.Notes,
		fmt.Sprintf("CPU writes, vfio-user beside embedded host: %.2f with Device Control at 4096, %.2f at 128 (medians of the rounds' ratios)",
			ratio(values[cpuWritesAt(1)], values[cpuWritesAt(0)]), ratio(values[cpuWritesAt(3)], values[cpuWritesAt(2)])),
		"bare UDP and TCP: one thread to another, payload sent in place and not copied on arrival",
		"memory: payload copied once before it is sent, as it is kept until it is acknowledged, and once on arrival, to its destination",
		fmt.Sprintf("over a round trip: the GPU of the paper, %d tags and MRRS %d; the round trip is that of a measured register read", paperTags, paperMRRS))
	return report, nil
}

// cpuWritesAt returns the index of the CPU writes of a case, the last of its three
// measurements.
func cpuWritesAt(dmaCase int) int { return 3*dmaCase + 2 }

func bareUDP(c link.Cipher, memory bool) string {
	if memory {
		return "bare UDP, CRC-32C, memory, cipher " + c.String()
	}
	return "bare UDP, CRC-32C, cipher " + c.String()
}

// The GPU of the paper: Equation 1 bounds its reads.
const (
	paperTags = 140
	paperMRRS = 128
)

// roundTripSize is the size of a copy over a round trip: the copy takes much longer
// than the wait at its end.
const roundTripSize = 1 << 20

// overRoundTrips measures both ways to the device over networks of several delays.
func (o *Options) overRoundTrips(ctx context.Context, report *Report) error {
	for _, delay := range []time.Duration{0, 10 * time.Microsecond, 50 * time.Microsecond, 100 * time.Microsecond} {
		if err := o.overRoundTrip(ctx, delay, report); err != nil {
			return err
		}
	}
	return nil
}

// overRoundTrip measures with a delay that the network adds to a round trip, half of
// it in each direction.
func (o *Options) overRoundTrip(ctx context.Context, delay time.Duration, report *Report) (err error) {
	with := *o
	with.Fault.Partitions = append([]fault.Window(nil), o.Fault.Partitions...)
	with.Fault.Delay += delay / 2
	if with.Polling.Window > 0 { // or the wake-ups of readers would be added too
		with.Polling.Window += delay
	}
	p, dev, err := with.ready(ctx, pairSpec{slots: 1, gpu: gpu.Spec{MaxReadRequest: paperMRRS, Tags: paperTags}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.close(), p.close()) }()
	c, err := newCopier(ctx, dev.Device, min(o.Size, roundTripSize))
	if err != nil {
		return err
	}
	read := readRegister(dev.Device)
	values, err := with.alternate([]probe{
		{fmt.Sprintf("round trip, %v added", delay), func(d time.Duration) (float64, error) {
			samples, err := timeEach(d, read, false)
			return median(samples), err
		}},
		hostToDevice.probe(fmt.Sprintf("DMA reads, %v added", delay), c),
		cpuWrites.probe(fmt.Sprintf("CPU writes, %v added", delay), c),
	})
	if err != nil {
		return err
	}
	trip := figure(fmt.Sprintf("round trip, %v added", delay), Microseconds, values[0])
	// Equation 1 of the paper, with the round trip of the same round.
	equation := make([]float64, len(values[0]))
	for i, us := range values[0] {
		equation[i] = paperTags * paperMRRS / us / 1e3
	}
	reads := figure(fmt.Sprintf("DMA reads, %v added", delay), GigabytesSecond, values[1]).beside("Equation 1", values[1], equation)
	writes := figure(fmt.Sprintf("CPU writes, %v added", delay), GigabytesSecond, values[2]).beside("DMA reads", values[2], values[1])
	report.Figures = append(report.Figures, trip, reads, writes)
	return nil
}
