package qmp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// MaxMessage is the longest message, in bytes with its line end, that a client accepts. The
// longest reply of QEMU 11, that of query-qmp-schema, has about 250 KiB.
const MaxMessage = 4 << 20

// An Error is QEMU's refusal of a command (QMP specification, section 2.4.2).
type Error struct {
	Command string `json:"-"`     // the refused command
	Class   string `json:"class"` // "GenericError", "DeviceNotFound", "CommandNotFound", ...
	Desc    string `json:"desc"`  // for people
}

func (e *Error) Error() string { return fmt.Sprintf("qmp: %s: %s (%s)", e.Command, e.Desc, e.Class) }

// An Event is an asynchronous message of QEMU (section 2.5).
type Event struct {
	Name string          // such as "DEVICE_DELETED"
	Data json.RawMessage // the event's own object; nil if it has none
	Time time.Time       // QEMU's clock; zero if QEMU had none
}

// A Version is the version of QEMU.
type Version struct {
	Major, Minor, Micro int
	Package             string
}

func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Micro) }

// message is one line from QEMU. Exactly one of the pointers is set.
type message struct {
	greeting *Version
	reply    *reply
	event    *Event
}

type reply struct {
	id    uint64
	value json.RawMessage
	err   *Error // its Command is still empty
}

// wire is the union of QEMU's messages. Fields without a tag have their name in lower case.
type wire struct {
	QMP *struct {
		Version struct {
			QEMU    struct{ Major, Minor, Micro int }
			Package string
		}
	}

	ID     *uint64         `json:"id"`
	Return json.RawMessage `json:"return"`
	Error  *Error          `json:"error"`

	Event     string          `json:"event"`
	Data      json.RawMessage `json:"data"`
	Timestamp struct{ Seconds, Microseconds int64 }
}

// ErrNotQMP is the cause of a failure to read what a server at a QMP socket sends.
var ErrNotQMP = errors.New("not a QMP message")

// parse reads one line. The result shares nothing with it.
func parse(line []byte) (message, error) {
	var w wire
	if err := json.Unmarshal(bytes.TrimSpace(line), &w); err != nil {
		return message{}, fmt.Errorf("%w: %w", ErrNotQMP, err)
	}
	kinds := 0
	for _, has := range []bool{w.QMP != nil, w.Return != nil, w.Error != nil, w.Event != ""} {
		if has {
			kinds++
		}
	}
	if kinds != 1 {
		return message{}, fmt.Errorf("%w: %d of greeting, return, error and event in one", ErrNotQMP, kinds)
	}
	switch {
	case w.QMP != nil:
		v := w.QMP.Version
		return message{greeting: &Version{v.QEMU.Major, v.QEMU.Minor, v.QEMU.Micro, v.Package}}, nil
	case w.Event != "":
		e := &Event{Name: w.Event, Data: w.Data}
		// QEMU sends -1 and -1 when it cannot tell the time (section 2.5).
		if t := w.Timestamp; t.Seconds >= 0 && t.Microseconds >= 0 && t.Microseconds < 1e6 {
			e.Time = time.Unix(t.Seconds, t.Microseconds*1e3)
		}
		return message{event: e}, nil
	case w.ID == nil:
		// QEMU answers without an id only when it could not parse the command.
		return message{}, fmt.Errorf("%w: reply without id", ErrNotQMP)
	case w.Error != nil:
		return message{reply: &reply{id: *w.ID, err: w.Error}}, nil
	default:
		return message{reply: &reply{id: *w.ID, value: w.Return}}, nil
	}
}
