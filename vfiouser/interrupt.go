package vfiouser

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/rawio/eventfd"
	"github.com/dxpu-project/dxpu/internal/rawio/rights"
)

// IRQAction is a change of interrupt vectors.
type IRQAction uint8

// Actions of SET_IRQS.
const (
	IRQArmed    IRQAction = iota + 1 // the VMM added descriptors
	IRQDisarmed                      // the VMM removed descriptors
	IRQMasked
	IRQUnmasked
	IRQTriggered // the VMM asked for the interrupt itself, a loop-back test
)

// IRQChange describes one SET_IRQS of the VMM.
type IRQChange struct {
	Index        uint32 // IRQINTx and the others
	Start, Count uint32 // range of vectors
	Action       IRQAction
}

// irqFlags are the flags of DEVICE_GET_IRQ_INFO. QEMU arms MSI-X vectors one
// by one because NoResize is absent there.
var irqFlags = [NumIRQs]uint32{
	IRQINTx: IRQFlagEventFD | IRQFlagMaskable | IRQFlagAutomasked,
	IRQMSI:  IRQFlagEventFD | IRQFlagNoResize,
	IRQMSIX: IRQFlagEventFD,
	IRQErr:  IRQFlagEventFD,
	IRQReq:  IRQFlagEventFD,
}

// vector is one interrupt vector. INTx masks itself when it fires.
type vector struct {
	fd      int // event descriptor, or -1
	masked  bool
	pending bool // fired while masked
}

// interrupts holds the vectors that the VMM has armed.
type interrupts struct {
	// mu guards all fields. It is held while a descriptor is signalled, which
	// does not block, so that the descriptor is not closed meanwhile.
	mu     sync.Mutex
	index  [NumIRQs][]vector
	level  bool     // INTx is asserted
	unmask *os.File // event of the VMM that unmasks INTx, or nil
	trash  *Disposer
	wg     sync.WaitGroup
}

func (t *interrupts) init(counts [NumIRQs]uint32, trash *Disposer) {
	t.trash = trash
	for i, n := range counts {
		t.index[i] = make([]vector, n)
		for j := range t.index[i] {
			t.index[i][j].fd = -1
		}
	}
}

// TriggerIRQ signals a vector of the interrupt index. It returns ErrNotArmed
// when the VMM has given no descriptor; a masked vector stays pending and fires
// when the VMM unmasks it. INTx masks itself and fires again only after the VMM has
// unmasked it; use SetINTx for a level.
func (c *Conn) TriggerIRQ(index, vector uint32) error {
	t := &c.irqs
	t.mu.Lock()
	defer t.mu.Unlock()
	if index >= NumIRQs || uint64(vector) >= uint64(len(t.index[index])) {
		return fmt.Errorf("vfiouser: no vector %d of interrupt index %d", vector, index)
	}
	return t.fireLocked(index, &t.index[index][vector])
}

// SetINTx sets the level of the legacy interrupt. It signals the VMM when the
// level is asserted and, while it stays asserted, each time the VMM unmasks it.
// The level belongs to the connection: a device sets it again when a VMM connects.
func (c *Conn) SetINTx(asserted bool) error {
	t := &c.irqs
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.index[IRQINTx]) == 0 {
		return errors.New("vfiouser: the device has no INTx")
	}
	t.level = asserted
	v := &t.index[IRQINTx][0]
	v.pending = false
	if !asserted || v.masked {
		return nil
	}
	return t.fireLocked(IRQINTx, v)
}

func (t *interrupts) fireLocked(index uint32, v *vector) error {
	if v.fd < 0 {
		return ErrNotArmed
	}
	if v.masked {
		v.pending = true
		return nil
	}
	v.pending = false
	v.masked = index == IRQINTx
	if err := eventfd.Signal(v.fd); err != nil {
		return fmt.Errorf("vfiouser: signal interrupt: %w", err)
	}
	return nil
}

// set carries out SET_IRQS. It takes over the descriptors in any case.
func (t *interrupts) set(req IRQSet, fds []int) (IRQChange, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change, used, err := t.setLocked(req, fds)
	if !used {
		t.trash.Close(fds)
	}
	return change, err
}

// setLocked returns whether it has taken the descriptors.
func (t *interrupts) setLocked(req IRQSet, fds []int) (IRQChange, bool, error) {
	change := IRQChange{Index: req.Index, Start: req.Start, Count: req.Count}
	refuse := func(why string) (IRQChange, bool, error) {
		return IRQChange{}, false, fmt.Errorf("vfiouser: irq set: index %d, vectors %d+%d: %s: %w",
			req.Index, req.Start, req.Count, why, unix.EINVAL)
	}
	if req.Index >= NumIRQs {
		return refuse("no such index")
	}
	all := t.index[req.Index]
	if req.Flags == IRQDataNone|IRQActionTrigger && req.Count == 0 { // disable
		t.disarmLocked(all)
		if req.Index == IRQINTx {
			t.unlistenLocked()
		}
		change.Start, change.Count, change.Action = 0, uint32(len(all)), IRQDisarmed
		return change, false, nil
	}
	if uint64(req.Start)+uint64(req.Count) > uint64(len(all)) {
		return refuse("no such vectors")
	}
	vs := all[req.Start:][:req.Count]
	if req.Flags&IRQDataEventFD != 0 {
		if len(fds) != 0 && len(fds) != len(vs) {
			return refuse(strconv.Itoa(len(fds)) + " descriptors")
		}
		for _, fd := range fds {
			// Nonblocking for the listener, whose wait needs the poller.
			if !eventfd.Is(fd) || unix.SetNonblock(fd, true) != nil {
				return refuse("not an event descriptor")
			}
		}
	}
	switch req.Flags {
	case IRQDataEventFD | IRQActionTrigger:
		if len(fds) > 0 {
			t.armLocked(req.Index, vs, fds)
			change.Action = IRQArmed
		} else {
			t.disarmLocked(vs)
			change.Action = IRQDisarmed
		}
		return change, true, nil
	case IRQDataEventFD | IRQActionUnmask:
		if req.Index != IRQINTx {
			return refuse("only INTx has an unmask event")
		}
		t.unlistenLocked()
		if len(fds) == 1 {
			t.listenLocked(fds[0])
		}
		change.Action = IRQUnmasked
		return change, true, nil
	case IRQDataEventFD | IRQActionMask:
		return refuse("no mask event")
	}
	change.Action = t.actLocked(req, vs)
	return change, false, nil
}

// actLocked triggers, masks or unmasks the vectors of the request.
func (t *interrupts) actLocked(req IRQSet, vs []vector) IRQAction {
	for i := range vs {
		if req.Flags&IRQDataBool != 0 && req.Bools[i] == 0 {
			continue
		}
		switch req.Flags & irqActionMask {
		case IRQActionTrigger:
			_ = t.fireLocked(req.Index, &vs[i]) // not armed: nothing to trigger
		case IRQActionMask:
			vs[i].masked = true
		case IRQActionUnmask:
			t.unmaskLocked(req.Index, &vs[i])
		}
	}
	return map[uint32]IRQAction{IRQActionTrigger: IRQTriggered, IRQActionMask: IRQMasked, IRQActionUnmask: IRQUnmasked}[req.Flags&irqActionMask]
}

func (t *interrupts) unmaskLocked(index uint32, v *vector) {
	v.masked = false
	if v.pending || index == IRQINTx && t.level {
		_ = t.fireLocked(index, v) // not armed: it fires when it is
	}
}

func (t *interrupts) disarmLocked(vs []vector) {
	for i := range vs {
		if vs[i].fd >= 0 {
			_ = unix.Close(vs[i].fd)
		}
		vs[i] = vector{fd: -1}
	}
}

// armLocked gives vectors their descriptors. One that has a descriptor gets another: it stays
// masked, and what has fired meanwhile waits, as in Linux' VFIO.
func (t *interrupts) armLocked(index uint32, vs []vector, fds []int) {
	for i := range vs {
		if vs[i].fd >= 0 {
			_ = unix.Close(vs[i].fd)
			vs[i].fd = fds[i]
		} else {
			vs[i] = vector{fd: fds[i]}
		}
		if index == IRQINTx && t.level && !vs[i].masked {
			_ = t.fireLocked(index, &vs[i])
		}
	}
}

// listenLocked unmasks INTx each time the VMM signals fd: KVM does that at the
// end of the guest's interrupt handler (irqfd with resampling).
func (t *interrupts) listenLocked(fd int) {
	f := os.NewFile(uintptr(fd), "unmask")
	t.unmask = f
	t.wg.Go(func() {
		for {
			if _, err := WaitEvent(f); err != nil {
				return
			}
			t.mu.Lock()
			if t.unmask == f {
				t.unmaskLocked(IRQINTx, &t.index[IRQINTx][0])
			}
			t.mu.Unlock()
		}
	})
}

// unlistenLocked ends the listener. It does not wait for it: the listener may wait
// for the lock.
func (t *interrupts) unlistenLocked() {
	if t.unmask != nil {
		_ = t.unmask.Close()
		t.unmask = nil
	}
}

// close closes all descriptors and waits for the listener.
func (t *interrupts) close() {
	t.mu.Lock()
	for i := range t.index {
		t.disarmLocked(t.index[i])
	}
	t.unlistenLocked()
	t.level = false
	t.mu.Unlock()
	t.wg.Wait()
}

// NewEvent makes an event descriptor to arm an interrupt vector with. A read
// of it blocks its goroutine only, and ends when the file is closed. A device may
// have 2048 vectors: NewEvent leaves the last 64 descriptors below the limit of the
// process to other uses. The error tells the limit.
func NewEvent() (*os.File, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if errors.Is(err, unix.EMFILE) {
		err = rights.Limit()
	}
	if err == nil {
		if err = rights.Allowed(fd); err != nil {
			_ = unix.Close(fd)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("vfiouser: eventfd: %w", err)
	}
	return os.NewFile(uintptr(fd), "eventfd"), nil
}

// WaitEvent waits until the descriptor of NewEvent has been signalled and
// returns the number of signals since the last call. It ends when the file is
// closed, even if a peer that shares the descriptor has made it blocking.
func WaitEvent(f *os.File) (uint64, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var n uint64
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		n, failed = eventfd.Read(int(fd))
		return !errors.Is(failed, unix.EAGAIN)
	})
	return n, errors.Join(err, failed)
}
