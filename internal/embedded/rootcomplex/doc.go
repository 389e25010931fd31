// Package rootcomplex is the embedded host as a pure machine: a root port with
// host memory, a CPU's accesses and interrupts, and the enumeration that
// firmware and operating systems do.
package rootcomplex
