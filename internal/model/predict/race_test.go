//go:build race

package predict

// raceEnabled says that the race detector makes everything ten times slower.
const raceEnabled = true
