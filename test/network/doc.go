// Package network holds the tests of the data plane on real networks: proxies
// in processes and network namespaces of their own, joined by virtual Ethernet
// that is cut, made narrower and lied to, and processes that are killed. See README.md.
package network
