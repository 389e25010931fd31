// Package vm holds the tests of the whole path with nothing simulated on
// the host's side: an unmodified QEMU and an unmodified Linux guest into which
// a host proxy plugs the devices of a GPU box. See README.md.
package vm
