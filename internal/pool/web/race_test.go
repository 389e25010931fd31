//go:build race

package web

// raceEnabled says that the race detector makes everything ten times slower.
const raceEnabled = true
