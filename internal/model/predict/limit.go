package predict

import "time"

// maxRTT bounds the search for a round trip: no network in a datacenter takes longer.
const maxRTT = time.Second

// firstStep is the first round trip that LongestRTT adds.
const firstStep = time.Microsecond

// LongestRTT returns the longest round trip, to a nanosecond and up to a second, at
// which relative, the performance over a round trip, is at least want. ok is false if it
// is less at the native round trip already. A performance can grow with the round trip
// where threads come to the device in another order: it is at least want at all those
// tried below, each of which adds twice as much as the one before.
func LongestRTT(native time.Duration, want float64, relative func(rtt time.Duration) (float64, error)) (rtt time.Duration, ok bool, err error) {
	reaches := func(rtt time.Duration) bool {
		if err != nil {
			return false
		}
		var got float64
		got, err = relative(rtt)
		return err == nil && got >= want
	}
	if !reaches(native) {
		return 0, false, err
	}
	low, high := native, native+firstStep
	for ; reaches(min(high, maxRTT)); high = native + 2*(high-native) {
		if low = min(high, maxRTT); low == maxRTT {
			return maxRTT, true, nil
		}
	}
	for high = min(high, maxRTT); high-low > 1; {
		if mid := (low + high) / 2; reaches(mid) {
			low = mid
		} else {
			high = mid
		}
	}
	return low, true, err
}
