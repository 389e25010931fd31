//go:build race

package scenario

// raceEnabled says that the race detector makes everything ten times slower.
const raceEnabled = true
