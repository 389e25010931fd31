// Package gpuerr classifies GPU errors by their XID, the error number in the logs
// of NVIDIA's driver, and decides which action an error requires.
//
// A single error requires the action of its class. Class.Limit errors within
// Class.Window require the more severe Class.Escalated. A GPU that fails repeatedly
// stays out of service for a time that doubles (Backoff). All functions are pure:
// the caller passes the history and the time.
package gpuerr

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Action is the response that an error requires. A greater action is more severe.
type Action uint8

// Actions, by severity.
const (
	// Ignore only counts the error.
	Ignore Action = iota + 1
	// RestartApplication: the running application is lost, the GPU works.
	RestartApplication
	// Reset: the GPU must be reset before it is used again.
	Reset
	// Replace: the GPU is replaced, and kept out of service for a while.
	Replace
)

// String returns the action as a verb, such as "reset".
func (a Action) String() string {
	if a < Ignore || a > Replace {
		return fmt.Sprintf("Action(%d)", uint8(a))
	}
	return [...]string{Ignore: "ignore", RestartApplication: "restart the application", Reset: "reset", Replace: "replace"}[a]
}

// Class describes the errors with one XID.
type Class struct {
	Code   uint32 // XID, or DeviceFailed
	Name   string
	Action Action // for a single error
	// Limit errors within Window require the action Escalated. With Limit 0 the
	// number of errors does not matter. Errors that a tenant's program can cause
	// by itself have no limit, so that a tenant cannot take GPUs out of service.
	Limit     uint64
	Window    time.Duration
	Escalated Action
}

// DeviceFailed is the code of a device that its box reports as failed without an
// XID. A single failure requires no action; repeated ones do.
const DeviceFailed = 0

const (
	hour = time.Hour
	day  = 24 * time.Hour
)

// classes is sorted by code. Names and actions follow the recommendations of
// NVIDIA's "XID Errors" catalogue; the limits and windows are our own.
var classes = []Class{
	{DeviceFailed, "device failed", Ignore, 3, hour, Replace},
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

// Lookup returns the class of a code. Errors with an unknown code are counted;
// 20 of them within an hour require a reset.
func Lookup(code uint32) Class {
	i, ok := slices.BinarySearchFunc(classes, code, func(c Class, code uint32) int { return cmp.Compare(c.Code, code) })
	if !ok {
		return Class{code, "unknown error", Ignore, 20, hour, Reset}
	}
	return classes[i]
}

// Classes returns all known classes, by code.
func Classes() []Class { return slices.Clone(classes) }

// String returns the class for sentences: "XID 79 (GPU has fallen off the bus)".
func (c Class) String() string {
	if c.Code == DeviceFailed {
		return c.Name
	}
	return fmt.Sprintf("XID %d (%s)", c.Code, c.Name)
}
