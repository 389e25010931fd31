package cl

import "runtime"

// platformTimer is the resolution of a platform's timer of the host, 0 if its devices have none.
const platformTimer = 0x0905

// DeviceTime returns the time of a device in nanoseconds, of the clock of the events' times.
func (l *Library) DeviceTime(f Found) (uint64, error) {
	// A platform without timers may have no such function either: the loader would call none.
	if l.fn[getDeviceAndHostTimer] == 0 || l.number(getPlatformInfo, uintptr(f.platform), platformTimer, 8) == 0 {
		return 0, InvalidOperation
	}
	device, host := new(uint64), new(uint64)
	err := l.call(getDeviceAndHostTimer, uintptr(f.device), pointer(device), pointer(host))
	runtime.KeepAlive(host)
	return *device, err
}
