//go:build race

package playback_test

// raceEnabled says that the race detector makes everything ten times slower.
const raceEnabled = true
