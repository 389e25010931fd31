package hostproxy

import (
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/pcie"
)

// A VMM may end while the device works for its guest, and the next one may connect to the
// same socket at once, with its guest's memory at the same addresses. So the proxy resets the
// device when a VMM disconnects, as vfio does when its file is closed. Until the answer has come,
// behind all that the device had still to write, the device reaches no memory.
//
// slot.serves is the connection for which the device may work. vm.bus is vm.conn if the device
// works for that one, and nil otherwise.

// admit lets the device reach the VMM that is connected, or resets it if it may work for
// another one.
func (v *vm) admit(e engine.Entry) {
	switch s := v.slot; {
	case v.conn == nil:
	case s.serves == nil || s.serves == v.conn:
		s.serves, v.bus = v.conn, v.conn
	default:
		v.rest(e)
	}
}

// rest begins to reset the device.
func (v *vm) rest(e engine.Entry) {
	if v.lost || v.resting || v.slot.serves == nil {
		return
	}
	v.resting = true
	v.unsent = &accessRun{kind: resetAll, op: v.root.begin(e, op{done: v.rested})}
	v.sendReset(e)
}

// sendReset sends the requests of the reset that the link has room for.
func (v *vm) sendReset(e engine.Entry) {
	if v.unsent != nil && v.step(e, v.unsent) == nil {
		v.unsent = nil
	}
}

// rested follows the answer to a reset. Without one the device reaches no memory until a
// reset of the VMM has worked.
func (v *vm) rested(e engine.Entry, ok bool, _ pcie.CplStatus) {
	v.resting = false
	if !ok || v.lost {
		return
	}
	v.slot.serves = nil
	v.reads.drop()
	v.admit(e)
}
