// Package gpuerr knows the classes of errors of a GPU, by the numbers that
// operators know from the logs of NVIDIA's driver (Xid errors), and what each
// calls for.
//
// A single error has the action of its class; so many of a class within a
// window have a graver one (hysteresis upwards). How long a GPU then stays out
// of service doubles from time to time (hysteresis downwards). Everything here is
// a function of what was seen and when.
package gpuerr

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Action is what an error calls for. Graver ones are greater.
type Action uint8

// Actions, from light to grave.
const (
	// Ignore: counted, nothing else.
	Ignore Action = iota + 1
	// RestartApplication: what ran is lost, the GPU is good.
	RestartApplication
	// Reset: the GPU must be reset before it serves again.
	Reset
	// Replace: the GPU is not to be trusted; it is kept out of service for a while.
	Replace
)

// String returns the action in words.
func (a Action) String() string {
	switch a {
	case Ignore:
		return "ignore"
	case RestartApplication:
		return "restart the application"
	case Reset:
		return "reset"
	case Replace:
		return "replace"
	default:
		return fmt.Sprintf("Action(%d)", uint8(a))
	}
}

// Class is what is known of the errors of one number.
type Class struct {
	Code   uint32
	Name   string
	Action Action
	// Limit of them within Window call for Then. 0: any number is the same,
	// which holds for what a tenant's program can bring about by itself: it
	// must not be able to take GPUs out of service.
	Limit  uint64
	Window time.Duration
	Then   Action
}

// Lost is the class of a device that its box reports as failed without an
// error of its own: once is bad luck, coming and going is not.
const Lost = 0

const (
	hour = time.Hour
	day  = 24 * time.Hour
)

// classes is ordered by code. Names and actions follow what the vendor's
// catalogue of Xid errors recommends to operators; the limits are ours.
var classes = []Class{
	{Lost, "device failed", Ignore, 3, hour, Replace},
	{8, "GPU stopped processing", RestartApplication, 0, 0, 0},
	{13, "graphics engine exception", RestartApplication, 0, 0, 0},
	{31, "memory page fault", RestartApplication, 0, 0, 0},
	{32, "corrupted push buffer", RestartApplication, 0, 0, 0},
	{38, "driver firmware error", Reset, 3, day, Replace},
	{43, "GPU stopped processing for an application", RestartApplication, 0, 0, 0},
	{45, "channels removed after an earlier error", Ignore, 0, 0, 0},
	{48, "double-bit memory error", Reset, 3, day, Replace},
	{61, "internal micro-controller warning", Reset, 3, day, Replace},
	{62, "internal micro-controller halt", Reset, 3, day, Replace},
	{63, "row remapping recorded", Ignore, 4, day, Replace},
	{64, "row remapping failed", Replace, 0, 0, 0},
	{68, "video decoder exception", RestartApplication, 0, 0, 0},
	{69, "graphics engine class error", RestartApplication, 0, 0, 0},
	{74, "NVLink error", Reset, 3, day, Replace},
	{79, "GPU has fallen off the bus", Replace, 0, 0, 0},
	{92, "high rate of single-bit memory errors", Ignore, 5, hour, Replace},
	{94, "contained memory error", RestartApplication, 3, day, Reset},
	{95, "uncontained memory error", Reset, 2, day, Replace},
	{109, "context switch timeout", RestartApplication, 3, hour, Reset},
	{110, "security fault", Reset, 2, day, Replace},
	{119, "system processor does not answer", Reset, 3, day, Replace},
	{120, "system processor error", Reset, 3, day, Replace},
	{121, "corrected chip-to-chip link error", Ignore, 100, hour, Replace},
	{137, "NVLink access fault", RestartApplication, 0, 0, 0},
	{140, "memory error that was not recovered", Reset, 2, day, Replace},
	{143, "GPU initialization failed", Replace, 0, 0, 0},
	{145, "NVLink receive error", Reset, 3, day, Replace},
	{146, "NVLink transmit error", Reset, 3, day, Replace},
	{149, "NVLink interface error", Reset, 3, day, Replace},
	{156, "memory retired", Ignore, 4, day, Replace},
	{157, "memory could not be retired", Replace, 0, 0, 0},
	{158, "fatal timeout", Reset, 3, day, Replace},
}

// Lookup returns the class of a code. An unknown one is counted, and a GPU that
// has many of them is reset.
func Lookup(code uint32) Class {
	i, ok := slices.BinarySearchFunc(classes, code, func(c Class, code uint32) int { return cmp.Compare(c.Code, code) })
	if !ok {
		return Class{code, "unknown error", Ignore, 20, hour, Reset}
	}
	return classes[i]
}

// String returns the class as sentences have it.
func (c Class) String() string {
	if c.Code == Lost {
		return c.Name
	}
	return fmt.Sprintf("XID %d (%s)", c.Code, c.Name)
}
