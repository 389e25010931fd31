package cl

import (
	"sync"

	"github.com/ebitengine/purego"
)

// ended takes the numbers of the commands that end. A platform calls notifyEnd in a thread of
// its own, or in the call of Notify; so the function behind ended neither waits nor calls the
// platform.
var ended struct {
	mu   sync.Mutex
	call func(number uintptr, err error)
}

// notifyEnd is one for the process: callbacks are never freed.
var notifyEnd = sync.OnceValue(func() uintptr {
	return purego.NewCallback(func(_, status, number uintptr) uintptr {
		var err error
		if s := Status(int32(status)); s < 0 {
			err = s
		}
		ended.mu.Lock()
		defer ended.mu.Unlock()
		if ended.call != nil {
			ended.call(number, err)
		}
		return 0
	})
})

// OnEnd sets the function for the ends of commands: err is what ended one. It is for the whole
// process. After OnEnd(nil), no call is under way.
func OnEnd(call func(number uintptr, err error)) {
	ended.mu.Lock()
	defer ended.mu.Unlock()
	ended.call = call
}

// Notify has the function of OnEnd called with a number when a command ends, also with an
// error.
func (l *Library) Notify(e Event, number uintptr) error {
	return l.call(setEventCallback, uintptr(e), eventComplete, notifyEnd(), number)
}
