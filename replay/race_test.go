//go:build race

package replay_test

// raceEnabled says that the race detector makes everything ten times slower.
const raceEnabled = true
