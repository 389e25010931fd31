//go:build !race

package hostproxy

const raceEnabled = false
