package hostproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/dxpu-project/dxpu/internal/hostproxy/controller"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
	"github.com/dxpu-project/dxpu/internal/vm/qmp"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// VM shows devices to a virtual machine. Each slot has a vfio-user socket, which
// exists while a device is in the slot and answers. With a QMP socket the front
// also plugs and unplugs the device; without one the operator of the VMM does.
type VM struct {
	// SocketDir holds the sockets, slot0.sock and so on.
	SocketDir string
	// QMP is the control socket of the QEMU, or "".
	QMP string
	// RootPort is the ID of the root port for a slot: a format with one %d.
	RootPort string
	// AccessTimeout bounds an access of the VMM. Default: that of vfiouser,
	// a second below QEMU's.
	AccessTimeout time.Duration
	// MessageDMA serves memory that the VMM does not share by messages. That is slow,
	// and a device's write may become visible after the answer to a later register
	// read: a driver that relies on the order reads stale data.
	MessageDMA bool
	// Polling configures the polling of the sockets' readers.
	Polling reader.Polling
	Logger  *slog.Logger

	// Keeper, if set, keeps the VMM's connections when this process is killed, and
	// Kept are those of an earlier process that was, by their name in the Keeper.
	Keeper Keeper
	Kept   map[string][]*os.File

	control  *control
	parting  parting
	blockers blockers
	pid      func(*qmp.Client) int // identifies a QEMU; tests replace it
}

// Socket returns the path of a slot's socket.
func (f *VM) Socket(slot int) string {
	return filepath.Join(f.SocketDir, fmt.Sprintf("slot%d.sock", slot))
}

// deviceID names the device of a slot in QEMU.
func deviceID(slot int) string { return fmt.Sprintf("dxpu%d", slot) }

func (f *VM) start(*Proxy) error {
	if err := f.check(); err != nil {
		return err
	}
	f.control = newControl()
	if f.pid == nil {
		f.pid = (*qmp.Client).PID
	}
	if f.Keeper == nil {
		return nil
	}
	for name, files := range f.Kept {
		if err := f.resume(name, files); err != nil {
			f.Logger.Warn("a device of a killed proxy is not answered for", "err", err)
		}
	}
	return nil
}

func (f *VM) plug(ctx context.Context, s *slot) (plugged, error) {
	if f.QMP != "" { // do not make a socket for a VM that does not run
		_, done, err := f.reach(ctx)
		if err != nil {
			return nil, err
		}
		defer done()
	}
	device, err := s.probe(ctx)
	if err != nil {
		return nil, err
	}
	s.Status.StepOnce("probed")
	for i, bar := range device.bars {
		if bar.Size > 0 && bar.IO {
			f.Logger.Warn("an I/O BAR of the device is not shown to the VM", "slot", s.index, "bar", i, "bytes", bar.Size)
		}
	}
	v := newVM(s, device)
	v.messageDMA = f.MessageDMA
	if v.estate, err = newEstate(f.Keeper, s.index, s.Status.Get().ID, device.config); err != nil {
		return nil, hostFault(err)
	}
	server, err := vfiouser.NewServer(v.serverConfig(f.AccessTimeout, f.Polling))
	if err != nil {
		v.estate.close()
		return nil, err
	}
	ln, err := vfiouser.Listen(f.Socket(s.index))
	if err != nil {
		v.estate.close()
		return nil, hostFault(err)
	}
	p := &pluggedVM{vm: v, front: f, server: server}
	v.show()
	p.serving.Go(func() {
		if err := server.Serve(context.Background(), ln); err != nil {
			f.Logger.Debug("vfio-user server ended", "slot", s.index, "err", err)
		}
	})
	if f.QMP == "" {
		return p, nil
	}
	if err := p.deviceAdd(ctx); err != nil {
		v.hide()
		p.close()
		return nil, err
	}
	s.Status.Step("device_add")
	return p, nil
}

// show makes v the slot's port.
func (v *vm) show() {
	s := v.slot
	e := s.host.group.Enter()
	defer s.host.group.Leave(e)
	s.host.table.SetBARs(s.index, v.device.bars)
	s.port = v
	if s.gone { // since the end of the probe
		v.DeviceLost(e)
	}
}

// hide takes the device from a VMM that stays connected although the plug has failed:
// the next plug shows the device to another connection.
func (v *vm) hide() {
	e := v.slot.host.group.Enter()
	defer v.slot.host.group.Leave(e)
	v.DeviceLost(e)
}

// pluggedVM is a device that is visible to a VM.
type pluggedVM struct {
	*vm
	front   *VM
	server  *vfiouser.Server
	serving sync.WaitGroup
	added   bool // QEMU has the device
	qemu    int  // process ID of that QEMU

	replaced time.Time // when QEMU removed the device that was left in the slot; zero: none was
}

// qmpTimeout bounds a command that QEMU answers at once.
const qmpTimeout = 10 * time.Second

func (p *pluggedVM) deviceAdd(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, qmpTimeout)
	defer cancel()
	client, done, err := p.front.reach(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := p.front.checkMemory(ctx, client); err != nil {
		return err
	}
	slot := p.vm.slot.index
	bus := fmt.Sprintf(p.front.RootPort, slot)
	device := qmp.VFIOUser(deviceID(slot), bus, p.front.Socket(slot))
	before := p.blockMigration(ctx, client)
	if err = client.DeviceAdd(ctx, device); leftOver(err) {
		err = p.replace(ctx, client, device)
	}
	if err != nil {
		p.undoBlock(ctx, client, before)
		return plugError(err)
	}
	p.added, p.qemu = true, p.front.pid(client)
	return nil
}

// plugError describes the failure of device_add. QEMU's refusal is the host's fault: its
// configuration or its state does not allow the device.
func plugError(err error) error {
	var refusal *qmp.Error
	switch {
	case errors.As(err, &refusal):
		return hostFault(fmt.Errorf("QEMU refuses the device: %s", refusal.Desc))
	case errors.Is(err, qmp.ErrClosed):
		return &faultError{controller.VMAbsent, errors.New("the VM ended while the device was plugged in")}
	}
	return hostFault(fmt.Errorf("hot-plug: %w", err))
}

// leftOver reports whether QEMU still has the slot's former device: a proxy that
// ends does not wait for guests, and a guest may release a device long after its
// forced removal. QEMU has no error class for it, only the text.
func leftOver(err error) bool {
	var e *qmp.Error
	return errors.As(err, &e) && strings.Contains(e.Desc, "Duplicate device ID")
}

// lateEjection is the longest time in which a guest serves a request to eject the device that
// was in the slot before. Half a second was seen on a busy machine.
const lateEjection = 10 * time.Second

// replace plugs a device in after QEMU has removed the one that was left. A guest with two
// pending requests to eject the old device, one from its forced removal or from an earlier
// proxy, ejects the new device on the second one: see look.
func (p *pluggedVM) replace(ctx context.Context, client *qmp.Client, device qmp.Device) error {
	if err := client.Unplug(ctx, device.ID); err != nil {
		return err
	}
	p.replaced = time.Now()
	return client.DeviceAdd(ctx, device)
}
