package predict

import "time"

// maxRTT bounds the search for a round trip: no network in a datacenter takes longer.
const maxRTT = time.Second

// LongestRTT returns the longest round trip, to a nanosecond and up to a second, at
// which relative, a performance that never grows with the round trip, is at least
// want. ok is false if it is less at the native round trip already.
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
	low, high := native, maxRTT
	if reaches(high) {
		return high, true, nil
	}
	for high-low > 1 {
		if mid := (low + high) / 2; reaches(mid) {
			low = mid
		} else {
			high = mid
		}
	}
	return low, true, err
}
