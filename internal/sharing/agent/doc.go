// Package agent is the sharing agent: the process of a machine that divides its GPUs
// between programs. It has the sockets, pages and processes around package broker.
//
// Each share has a folder of its own below the folder of the agent. The folder belongs to the
// user who asked for the share, so no other user reaches the socket in it; a container gets
// the folder "client" of it, where any user of the container may connect.
package agent
