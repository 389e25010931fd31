//go:build !race

package playback_test

const raceEnabled = false
