package hostproxy_test

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
	"github.com/dxpu-project/dxpu/vfiouser"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// strange is a device that is nothing but configuration space, of any content.
type strange struct {
	value, mask [pcie.ConfigSize]byte
	retries     int // accesses that are answered with Request Retry Status
	answers     []tlp.Packet
}

var _ device.Device = (*strange)(nil)

func (d *strange) put(off int, value, mask uint32) {
	binary.LittleEndian.PutUint32(d.value[off:], value)
	binary.LittleEndian.PutUint32(d.mask[off:], mask)
}

func (d *strange) Receive(_ time.Duration, p *tlp.Packet) bool {
	if p.Type != tlp.CfgRd0 && p.Type != tlp.CfgWr0 {
		return true
	}
	keep := func(out *tlp.Packet) bool {
		kept := *out
		kept.Data = append([]byte(nil), out.Data...)
		d.answers = append(d.answers, kept)
		return true
	}
	var out tlp.Packet
	switch {
	case d.retries > 0:
		d.retries--
		transaction.Respond(&out, p, p.Target, pcie.RequestRetry)
		keep(&out)
	case p.Type == tlp.CfgWr0:
		for i, b := range p.Data {
			if p.FirstBE>>i&1 != 0 {
				at := int(p.Register) + i
				d.value[at] = d.value[at]&^d.mask[at] | b&d.mask[at]
			}
		}
		transaction.Respond(&out, p, p.Target, pcie.SuccessfulCompletion)
		keep(&out)
	default:
		var job transaction.ReadJob
		job.Start(p, p.Target, pcie.DefaultRCB, pcie.MinPayload)
		job.Emit(&out, make([]byte, pcie.MinPayload), func(addr uint64, dst []byte) pcie.CplStatus {
			copy(dst, d.value[addr:])
			return pcie.SuccessfulCompletion
		}, keep)
	}
	return true
}

func (d *strange) Transmit(_ time.Duration, emit func(*tlp.Packet) bool) {
	for len(d.answers) > 0 && emit(&d.answers[0]) {
		d.answers = d.answers[1:]
	}
}

func (d *strange) Wake() time.Duration                       { return machine.Never }
func (d *strange) NextJob() (device.Job, bool)               { return nil, false }
func (d *strange) FinishJob(time.Duration, device.Job)       {}
func (d *strange) Reset(_ time.Duration, _ device.ResetKind) { d.answers = nil }

// A VMM gets the sizes that the BARs decode, for all kinds of BARs. The probe
// refuses a device that cannot be attached, with the reason.
func TestProbe(t *testing.T) {
	const bar = cfgspace.OffBAR0
	for _, c := range []struct {
		name  string
		make  func(d *strange)
		sizes [pcie.MaxBARs]uint64
		fails string
	}{
		{name: "no BAR", make: func(*strange) {}},
		{
			name:  "one of 4 KiB",
			make:  func(d *strange) { d.put(bar, 0, 0xffff_f000) },
			sizes: [pcie.MaxBARs]uint64{4096},
		},
		{
			name:  "the last one, of 16 bytes",
			make:  func(d *strange) { d.put(bar+20, 8, 0xffff_fff0) },
			sizes: [pcie.MaxBARs]uint64{5: 16},
		},
		{
			name: "64 bits in the last pair, 8 GiB",
			make: func(d *strange) {
				d.put(bar+16, 0xc, 0)
				d.put(bar+20, 0, 0xffff_fffe)
			},
			sizes: [pcie.MaxBARs]uint64{4: 8 << 30},
		},
		{
			name:  "64 bits without an upper half",
			make:  func(d *strange) { d.put(bar+20, 0xc, 0xffff_f000) },
			sizes: [pcie.MaxBARs]uint64{},
		},
		{
			name: "I/O ports",
			make: func(d *strange) { d.put(bar, 0, 0xffff_0000); d.put(bar+4, 1, 0xffff_ff00) },
			// They are not shown.
			sizes: [pcie.MaxBARs]uint64{0: 64 << 10},
		},
		{
			name: "programmed before",
			make: func(d *strange) { d.put(bar, 0xfe00_0000, 0xfff0_0000) },
			// Values that a former tenant left do not matter.
			sizes: [pcie.MaxBARs]uint64{1 << 20},
		},
		{
			name:  "a device that asks for retries",
			make:  func(d *strange) { d.put(bar, 0, 0xffff_0000); d.retries = 5 },
			sizes: [pcie.MaxBARs]uint64{64 << 10},
		},
		{name: "a bridge", make: func(d *strange) { d.value[cfgspace.OffHeaderType] = 0x81 }, fails: "header type 1"},
		{name: "nobody", make: func(d *strange) { d.put(0, 0xffff_ffff, 0) }, fails: "does not answer"},
		{name: "retries for ever", make: func(d *strange) { d.retries = 1 << 30 }, fails: "deadline exceeded"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.fails == "deadline exceeded" && (testing.Short() || raceEnabled) {
				t.Skip("takes as long as probing may")
			}
			d := &strange{}
			d.put(0, 0x1234_1af4, 0)
			d.put(cfgspace.OffCommand, 0, 0x7)
			c.make(d)
			r := newCluster(t, options{wrap: func(device.Device) device.Device { return d }})
			b := r.bind(0, 0, 0, 0)
			failed := dxpuv1.BindingState_BINDING_STATE_FAILED
			r.until("an outcome", func() bool {
				s := r.atHost(b).GetState()
				return s == attached || s == failed
			})
			have := r.atHost(b)
			if c.fails != "" {
				if have.State != failed || !strings.Contains(have.Detail, c.fails) {
					t.Errorf("%v: %q, want a failure with %q", have.State, have.Detail, c.fails)
				}
				return
			}
			if have.State != attached {
				t.Fatalf("%v: %s", have.State, have.Detail)
			}
			client, err := vfiouser.Dial(t.Context(), r.hosts[0].vm.Socket(0), vfiouser.ClientConfig{})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			for i, want := range c.sizes {
				info, _, err := client.RegionInfo(t.Context(), uint32(i))
				if err != nil || info.Size != want {
					t.Errorf("BAR %d: %d bytes, %v; want %d", i, info.Size, err, want)
				}
			}
		})
	}
}
