//go:build race

package vfiouser

func raceEnabled() bool { return true }
