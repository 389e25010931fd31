package netio

import (
	"cmp"
	"log/slog"

	"github.com/dxpu-project/dxpu/internal/dataplane/udp"
	"github.com/dxpu-project/dxpu/link"
)

const (
	// fullRoom is the room of a socket that got the buffer that it asked for: the
	// kernel doubles the size for what it adds to each datagram (socket(7)).
	fullRoom = 2 * udp.SocketBuffer
	// leastWindow is the smallest window of a link.
	leastWindow = 64 << 10
)

// warnOfRoom tells the operator of a socket with a smaller buffer.
func warnOfRoom(log *slog.Logger, path, room int) {
	if room < fullRoom {
		log.Warn("small socket buffer: set net.core.rmem_max and net.core.wmem_max, or datagrams are lost and links are slower",
			"path", path, "bytes", room/2, "want", udp.SocketBuffer)
	}
}

// boundWindow returns the window of a link whose datagrams wait in a socket with this
// room. A window of 0 is the link's default. The datagrams of one link alone must not
// overflow the socket.
func boundWindow(window, room int) int {
	return min(cmp.Or(window, link.DefaultWindow), max(room/2, leastWindow))
}

// room returns the room of the smallest socket.
func (f *Fabric) room() int {
	least := fullRoom
	for _, p := range f.paths {
		least = min(least, p.conn.ReceiveRoom())
	}
	return least
}
