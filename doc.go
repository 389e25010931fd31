// Package dxpu is an open implementation of datacenter-scale GPU disaggregation:
// ARCHITECTURE.md says which package does what. This one has no code, only the
// tests of what is true of the whole module: which package may import which, what
// a machine may not do, that each package says what it is.
package dxpu
