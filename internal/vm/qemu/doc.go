// Package qemu runs a Linux guest in an unmodified QEMU, with PCIe hot-plug slots and a
// control channel, for demonstrations and tests.
//
// scripts/install-qemu.sh and scripts/build-guest.sh put QEMU and the guest into a cache
// directory; [Locate] finds them. A [Spec] describes the machine, [Start] boots it, and
// callers use the [VM] through QMP (plug, unplug) and through [Control] (run a command in the
// guest). scripts/README.md gives the reason for every argument.
package qemu
