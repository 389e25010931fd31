//go:build race

package cli

// raceEnabled says that the race detector makes everything ten times slower.
const raceEnabled = true
