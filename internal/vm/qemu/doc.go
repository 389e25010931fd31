// Package qemu runs a Linux guest in an unmodified QEMU, with PCIe hot-plug slots and a
// control channel, for demonstrations and tests.
//
// What it needs is put into a cache directory by scripts/install-qemu.sh and
// scripts/build-guest.sh; [Locate] finds it. A [Spec] says which machine, [Start] boots it,
// and the [VM] is used through QMP (plug, unplug) and through [Control] (run a command in the
// guest). scripts/README.md gives the reason for every argument.
package qemu
