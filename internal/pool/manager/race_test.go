//go:build race

package manager

// raceEnabled says that the race detector makes everything ten times slower.
const raceEnabled = true
