// Package perf is the closed-form performance model of disaggregation: the effect
// of a longer round trip on PCIe reads, writes, copies and kernels (section 3.4 of
// the DxPU paper), on GPUs that share a proxy, and on peer-to-peer traffic.
//
// Times are time.Duration, amounts are Bytes, rates are BytesPerSecond (decimal:
// 1 GB/s is 1e9 bytes per second).
package perf

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Bytes is an amount of data.
type Bytes int64

// BytesPerSecond is a data rate; GB/s in messages is 1e9 of it.
type BytesPerSecond float64

// GBps returns the rate of v decimal gigabytes per second.
func GBps(v float64) BytesPerSecond { return BytesPerSecond(v * 1e9) }

// GB returns the rate in decimal gigabytes per second.
func (b BytesPerSecond) GB() float64 { return float64(b) / 1e9 }

// String prints the rate with three significant digits, "2.64 GB/s".
func (b BytesPerSecond) String() string {
	v, unit := scale(float64(b), "B/s", "kB/s", "MB/s", "GB/s", "TB/s")
	switch {
	case v < 10:
		return fmt.Sprintf("%.2f %s", v, unit)
	case v < 100:
		return fmt.Sprintf("%.1f %s", v, unit)
	}
	return fmt.Sprintf("%.0f %s", v, unit)
}

// Time returns the time of n bytes at this rate. It returns the longest Duration for
// a rate of zero or less, and for a time that does not fit.
func (b BytesPerSecond) Time(n Bytes) time.Duration {
	if n <= 0 {
		return 0
	}
	ns := float64(n) / float64(b) * 1e9
	if !(ns >= 0 && ns < math.MaxInt64) {
		return math.MaxInt64
	}
	return time.Duration(math.Round(ns))
}

// String prints the amount with a decimal unit.
func (n Bytes) String() string {
	v, unit := scale(float64(n), "B", "kB", "MB", "GB", "TB")
	return strconv.FormatFloat(v, 'g', 4, 64) + " " + unit
}

// scale divides v by 1000 while it has four digits, and returns its unit.
func scale(v float64, units ...string) (float64, string) {
	for len(units) > 1 && v >= 1000 {
		v, units = v/1000, units[1:]
	}
	return v, units[0]
}

var errRTT = errors.New("want a time greater than zero with a unit, such as 6.8us")

// ParseRTT parses a round trip such as "6.8us", "6800ns" or "0.0068ms". It
// must be greater than zero and at most one second.
func ParseRTT(s string) (time.Duration, error) {
	d, err := time.ParseDuration(strings.TrimSpace(s))
	if err != nil {
		return 0, fmt.Errorf("perf: round trip %q: %w", s, errRTT)
	}
	if d <= 0 || d > time.Second {
		return 0, fmt.Errorf("perf: round trip %q: %w, at most 1s", s, errRTT)
	}
	return d, nil
}
