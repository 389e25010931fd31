// Package vm tests the whole path with a real host side: a host proxy plugs the
// devices of a GPU box into an unmodified QEMU with an unmodified Linux guest. See
// README.md.
package vm
