// Package network tests the data plane on real networks: proxies run as processes
// in network namespaces joined by virtual Ethernet, and the tests cut a path, make
// its MTU smaller, inject faults and kill processes. See README.md.
package network
