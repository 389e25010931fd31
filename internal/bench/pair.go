package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"google.golang.org/protobuf/encoding/protojson"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/driver/vfiouserbus"
	"github.com/dxpu-project/dxpu/internal/agent/agenttest"
	"github.com/dxpu-project/dxpu/internal/embedded/rootcomplex"
	"github.com/dxpu-project/dxpu/internal/hostproxy"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/pcie"
)

// pairSpec describes a host proxy and a box proxy, joined over UDP on the loopback
// interface.
type pairSpec struct {
	slots   int
	gpu     gpu.Spec
	control sizes  // that the host writes into Device Control
	vm      bool   // a vfio-user client is the VMM; otherwise the host is embedded
	memory  int    // of an embedded host in bytes; 0: its default
	server  string // socket of a device server, in the place of the first GPU
	// slices divide one GPU, in place of slots GPUs.
	slices []sliceSpec
	policy string // of the slices
	// perSwitch is the number of slots of each virtual switch; 0: the most that it takes.
	perSwitch int
}

// slotsPerSwitch returns the number of slots of a virtual switch.
func (s *pairSpec) slotsPerSwitch() int { return cmp.Or(s.perSwitch, hostproxy.MaxSlots) }

// sizes are Max_Payload_Size and Max_Read_Request_Size in bytes; 0: the host's
// default.
type sizes struct{ mps, mrrs int }

// pair is a host proxy and a box proxy with their devices. The box runs in its own
// process. So does a host whose VMM is a vfio-user client; an embedded host is a
// part of its proxy and runs in the benchmark's process.
type pair struct {
	opts     *Options
	spec     pairSpec
	box      *child
	remote   *child                // the host, in its own process
	host     *member               // the host, in this process
	embedded []*hostproxy.Embedded // its switches
	dirs     []string              // of the vfio-user sockets, by switch
	mtu      int
}

func (o *Options) newPair(ctx context.Context, spec pairSpec) (*pair, error) {
	p := &pair{opts: o, spec: spec}
	if err := p.start(ctx); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *pair) start(ctx context.Context) error {
	var err error
	spec := p.spec
	p.box, err = p.opts.spawn(ctx, memberSpec{Kind: kindBox, Slots: spec.slots, Fault: p.opts.Fault.String(), Polling: p.opts.Polling, GPU: spec.gpu, Server: spec.server, Slices: spec.slices, Policy: spec.policy})
	if err != nil {
		return err
	}
	per := spec.slotsPerSwitch()
	host := memberSpec{Kind: kindHost, Slots: spec.slots, PerSwitch: per, Fault: p.opts.Fault.String(), Polling: p.opts.Polling}
	switches := (spec.slots + per - 1) / per
	if spec.vm {
		for range switches {
			dir, err := os.MkdirTemp("", "dxpu") // short: a socket's path has 107 bytes
			if err != nil {
				return err
			}
			p.dirs = append(p.dirs, dir)
		}
		host.SocketDirs = p.dirs
		p.remote, err = p.opts.spawn(ctx, host)
		return err
	}
	var fronts []hostproxy.Front
	for range switches {
		enum := spec.control.enum()
		e := hostproxy.NewEmbedded(hostproxy.EmbeddedSpec{Memory: spec.memory, Enum: &enum})
		p.embedded = append(p.embedded, e)
		fronts = append(fronts, e)
	}
	p.host, err = newMember(host, fronts)
	return err
}

// enum describes an enumeration that sets these sizes.
func (s sizes) enum() rootcomplex.EnumSpec {
	enum := rootcomplex.DefaultEnumSpec()
	enum.MaxPayload = cmp.Or(pcie.PayloadSize(s.mps), enum.MaxPayload)
	enum.MaxReadRequest = cmp.Or(pcie.PayloadSize(s.mrrs), enum.MaxReadRequest)
	enum.TenBitTags = true
	return enum
}

func vmFront(dir string, polling reader.Polling) hostproxy.Front {
	return &hostproxy.VM{SocketDir: dir, Polling: polling, Logger: slog.New(slog.DiscardHandler)}
}

// attach binds the first n slots of the host to the slots of the box with the same
// numbers.
func (p *pair) attach(n int) error {
	hostHello := p.hostHello()
	p.mtu = hostHello.MTU
	if p.opts.MTU > 0 {
		p.mtu = p.opts.MTU
	}
	var bindings []agenttest.Binding
	per := p.spec.slotsPerSwitch()
	for i := range n {
		on, slot := i/per, uint32(i%per)
		bindings = append(bindings, agenttest.Binding{
			ID: fmt.Sprint(i), Epoch: 1, Domain: fmt.Sprintf("switch%d", on), Cipher: p.cipher(), MTU: uint32(p.mtu),
			Host: p.end(uint32(firstHost+on), slot, hostHello),
			Box:  p.end(boxNumber, uint32(i), p.box.hello),
		})
	}
	hosts := make([]*dxpuv1.DesiredState, max(len(p.embedded), len(p.dirs)))
	for i := range hosts {
		hosts[i] = agenttest.Desired(uint32(firstHost+i), uint64(n), bindings...)
	}
	if err := p.box.apply(agenttest.Desired(boxNumber, uint64(n), bindings...)); err != nil {
		return err
	}
	if p.host != nil {
		p.host.apply(hosts)
		return p.host.await(n)
	}
	if err := p.remote.apply(hosts...); err != nil {
		return err
	}
	_, err := p.remote.call(request{Await: n})
	return err
}

func (p *pair) cipher() dxpuv1.Cipher {
	if p.opts.Cipher == link.CipherAES256GCM {
		return dxpuv1.Cipher_CIPHER_AES_256_GCM
	}
	return dxpuv1.Cipher_CIPHER_NONE
}

// end returns an end of a binding with the addresses of a process.
func (p *pair) end(node, slot uint32, hello reply) agenttest.End {
	e := agenttest.End{Node: node, Slot: slot}
	for path, addr := range hello.Addresses {
		e.Addresses = append(e.Addresses, &dxpuv1.PathAddress{Path: uint32(path), Address: addr, Mtu: uint32(p.mtu)})
	}
	return e
}

func (c *child) apply(desired ...*dxpuv1.DesiredState) error {
	var q request
	for _, d := range desired {
		raw, err := protojson.Marshal(d)
		if err != nil {
			return err
		}
		q.Desired = append(q.Desired, json.RawMessage(raw))
	}
	_, err := c.call(q)
	return err
}

func (p *pair) hostHello() reply {
	if p.host != nil {
		return p.host.hello()
	}
	return p.remote.hello
}

// open opens the device of a slot with the driver.
func (p *pair) open(ctx context.Context, slot int) (*opened, error) {
	if !p.spec.vm {
		per := p.spec.slotsPerSwitch()
		bus, err := p.embedded[slot/per].Open(slot % per)
		if err != nil {
			return nil, err
		}
		return openDevice(ctx, bus)
	}
	o := vfiouserbus.Options{MaxPayload: p.spec.control.mps, MaxReadRequest: p.spec.control.mrrs, Polling: p.opts.driverPolling()}
	bus, err := o.Open(ctx, p.socket(slot))
	if err != nil {
		return nil, err
	}
	return openDevice(ctx, bus)
}

// socket returns the socket of a slot whose VMM is a vfio-user client.
func (p *pair) socket(slot int) string {
	per := p.spec.slotsPerSwitch()
	vm := hostproxy.VM{SocketDir: p.dirs[slot/per]}
	return vm.Socket(slot % per)
}

// opened is an open device and its bus.
type opened struct {
	*driver.Device
	bus driver.Bus
}

func openDevice(ctx context.Context, bus driver.Bus) (*opened, error) {
	dev, err := driver.Open(ctx, bus, driver.Options{})
	if err != nil {
		return nil, errors.Join(err, bus.Close())
	}
	return &opened{dev, bus}, nil
}

func (o *opened) close() error { return errors.Join(o.Device.Close(), o.bus.Close()) }

// ready makes a pair with one attached device and opens it.
func (o *Options) ready(ctx context.Context, spec pairSpec) (*pair, *opened, error) {
	p, err := o.newPair(ctx, spec)
	if err != nil {
		return nil, nil, err
	}
	err = p.attach(spec.slots)
	var dev *opened
	if err == nil {
		dev, err = p.open(ctx, 0)
	}
	if err != nil {
		return nil, nil, errors.Join(err, p.close())
	}
	return p, dev, nil
}

// explain adds the reasons of lost bindings to an error, if the host runs in this
// process.
func (p *pair) explain(err error) error {
	if err == nil || p.host == nil {
		return err
	}
	for _, part := range p.host.parts {
		for _, s := range part.Observe().Slots {
			if b := s.Binding; b.GetState() != dxpuv1.BindingState_BINDING_STATE_ATTACHED && b.GetDetail() != "" {
				err = fmt.Errorf("%w; binding %s: %s", err, b.BindingId, b.Detail)
			}
		}
	}
	return err
}

func (p *pair) close() error {
	var errs []error
	if p.host != nil {
		errs = append(errs, p.host.Close())
	}
	for _, c := range []*child{p.remote, p.box} {
		if c != nil {
			errs = append(errs, c.stop())
		}
	}
	for _, dir := range p.dirs {
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}
