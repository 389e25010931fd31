//go:build race

package sim_test

// raceEnabled says that the race detector makes everything ten times slower.
const raceEnabled = true
