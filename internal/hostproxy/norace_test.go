//go:build !race

package hostproxy_test

const raceEnabled = false
