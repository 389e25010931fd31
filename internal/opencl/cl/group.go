package cl

import "runtime"

// SetConstant sets a specialization constant of a program for its next build.
func (l *Library) SetConstant(p Program, id uint32, value []byte) error {
	if l.fn[setProgramSpecializationConstant] == 0 {
		return InvalidOperation
	}
	err := l.call(setProgramSpecializationConstant, uintptr(p), uintptr(id), uintptr(len(value)), data(value))
	runtime.KeepAlive(value)
	return err
}

// Queries of a kernel about sub-groups. The first two take the size of a work-group as their input,
// and the third one a number of sub-groups.
const (
	SubGroupMaxSize      = 0x2033
	SubGroupCount        = 0x2034
	SubGroupLocalSize    = 0x11b8
	SubGroupMaxNumber    = 0x11b9
	SubGroupCompiled     = 0x11ba
	SubGroupSpilled      = 0x4109 // of cl_intel_required_subgroup_size
	SubGroupCompiledSize = 0x410a // of cl_intel_required_subgroup_size
)

// maxSubGroupValue is the size of the largest value of these queries: that of a work-group.
const maxSubGroupValue = 3 * 8

// SubGroupInfo makes a query of a kernel about sub-groups. The value has room bytes.
func (l *Library) SubGroupInfo(k Kernel, f Found, param uint32, input []byte, room int) ([]byte, error) {
	if l.fn[getKernelSubGroupInfo] == 0 {
		return nil, InvalidOperation
	}
	value := make([]byte, min(room, maxSubGroupValue))
	err := l.call(getKernelSubGroupInfo, uintptr(k), uintptr(f.device), uintptr(param), uintptr(len(input)), data(input),
		uintptr(len(value)), data(value), 0)
	runtime.KeepAlive(input)
	runtime.KeepAlive(value)
	return value, err
}
