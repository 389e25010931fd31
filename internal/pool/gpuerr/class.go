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

// classes is sorted by code.
var classes = sorted()

// catalogue holds names and actions by the immediate action in NVIDIA's "Xid Catalog"
// (docs.nvidia.com/deploy/xid-errors, Ampere and newer); codes without one are counted
// until they are many. The limits and windows are our own. The buckets of the catalogue
// become these actions:
//
//	IGNORE, UPDATE_SWFW, XID_154               Ignore
//	RESTART_APP, RESTART_VM                    RestartApplication
//	RESET_GPU, WORKFLOW_*                      Reset
//	RESTART_BM, CONTACT_SUPPORT, CHECK_MECHANICALS  Replace: a person is needed
//
// Where they differ, the line has the reason.
var catalogue = []Class{
	{DeviceFailed, "device failed", Ignore, 3, hour, Replace},
	{8, "GPU stopped processing", RestartApplication, 0, 0, 0},
	{11, "corrupted push buffer stream", RestartApplication, 0, 0, 0},
	{13, "graphics engine exception", RestartApplication, 0, 0, 0},
	{14, "test of the error report", Ignore, 0, 0, 0},
	{25, "illegal notification", RestartApplication, 0, 0, 0},
	{31, "memory page fault", RestartApplication, 0, 0, 0},
	{32, "corrupted push buffer", RestartApplication, 0, 0, 0},
	{37, "driver firmware: unknown method", Ignore, 0, 0, 0},
	{38, "driver firmware: watchdog timeout", Ignore, 3, day, Reset},
	{43, "GPU stopped processing for an application", Ignore, 0, 0, 0}, // the application has seen the error
	{44, "fault during a context switch", Ignore, 3, day, Reset},
	{45, "channels removed after an earlier error", Ignore, 0, 0, 0}, // the earlier error decides
	{46, "GPU timeout", Reset, 3, day, Replace},
	{48, "double-bit memory error", Reset, 3, day, Replace},
	{54, "auxiliary power is not connected", Replace, 0, 0, 0},
	{60, "video processor exception", RestartApplication, 0, 0, 0},
	{61, "internal micro-controller warning", Reset, 3, day, Replace}, // older catalogues; like 62
	{62, "internal micro-controller halt", Reset, 3, day, Replace},
	{63, "row remapping recorded", Ignore, 4, day, Replace},
	{64, "row remapping failed", Reset, 2, day, Replace},
	{66, "driver firmware: illegal register access", Ignore, 0, 0, 0},
	{67, "driver firmware: verification violation", Ignore, 0, 0, 0},
	{69, "graphics engine class error", RestartApplication, 0, 0, 0},
	{74, "NVLink error", Reset, 3, day, Replace},
	{78, "vGPU start error", Ignore, 0, 0, 0},
	{79, "GPU has fallen off the bus", Replace, 0, 0, 0},
	{80, "push buffer checksum mismatch", RestartApplication, 0, 0, 0},
	{92, "high rate of single-bit memory errors", Ignore, 5, hour, Replace},
	{93, "erase limit of the information memory", Ignore, 0, 0, 0},
	{94, "contained memory error", RestartApplication, 3, day, Reset},
	{95, "uncontained memory error", Reset, 2, day, Replace},
	{106, "test of the management bus", Ignore, 0, 0, 0},
	{107, "silent test of the management bus", Ignore, 0, 0, 0},
	{108, "NVLink remote translation error", Ignore, 0, 0, 0},
	{109, "context switch timeout", Reset, 0, 0, 0}, // a program can cause it: no limit
	{110, "security fault", Reset, 2, day, Replace},
	{119, "system processor does not answer", Reset, 3, day, Replace},
	{120, "system processor error", Reset, 3, day, Replace},
	{121, "corrected chip-to-chip link error", Ignore, 100, hour, Replace},
	{136, "link training failed", Reset, 3, day, Replace},
	{137, "NVLink access fault", Ignore, 0, 0, 0}, // of a peer's program, which has its own error
	{140, "memory error that was not recovered", Reset, 2, day, Replace},
	{141, "fast path error", Ignore, 3, day, Reset},
	{142, "video encoder exception", RestartApplication, 0, 0, 0}, // CONTACT_SUPPORT, but a program can cause it
	{143, "GPU initialization failed", Reset, 2, day, Replace},
	{144, "NVLink address window error", Reset, 3, day, Replace},
	{145, "NVLink receive error", Reset, 3, day, Replace},
	{146, "NVLink transmit error", Reset, 3, day, Replace},
	{147, "NVLink transport error", Ignore, 0, 0, 0},
	{148, "NVLink power control error", Ignore, 0, 0, 0},
	{149, "NVLink interface error", Reset, 3, day, Replace},
	{150, "NVLink management error", Reset, 3, day, Replace},
	{151, "key rotation error", RestartApplication, 3, day, Replace},
	{154, "recovery action changed", Ignore, 0, 0, 0}, // another error decides
	{155, "NVLink error defined by software", Reset, 3, day, Replace},
	{156, "memory retired", Reset, 4, day, Replace},
	{157, "memory could not be retired", Ignore, 2, day, Replace},
	{158, "fatal timeout", Reset, 3, day, Replace},
	{160, "channel retired", Ignore, 4, day, Replace},
	{161, "channel could not be retired", Ignore, 2, day, Replace},
}

// engines are the codes of one error for each engine of a kind. A program causes them.
var engines = []struct {
	name  string
	codes []uint32
}{
	{"copy engine exception", []uint32{39, 40, 41, 70, 71, 72, 75, 76, 77, 85, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135}},
	{"video decoder exception", []uint32{68, 83, 84, 88, 89, 96, 97, 98}},
	{"JPEG decoder exception", []uint32{82, 99, 100, 101, 102, 103, 104, 105}},
	{"optical flow exception", []uint32{86, 139}},
}

// sorted joins the two lists by code.
func sorted() []Class {
	out := slices.Clone(catalogue)
	for _, e := range engines {
		for _, code := range e.codes {
			out = append(out, Class{code, e.name, RestartApplication, 0, 0, 0})
		}
	}
	slices.SortFunc(out, func(a, b Class) int { return cmp.Compare(a.Code, b.Code) })
	return out
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
