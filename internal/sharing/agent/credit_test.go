//go:build linux

package agent_test

import (
	"testing"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
	"github.com/dxpu-project/dxpu/share"
)

// packet sends messages in one packet.
func (c *client) packet(list ...wire.Message) error {
	b := make([]byte, 0, wire.MaxPacket*wire.MessageSize)
	for _, m := range list {
		b = m.Append(b)
	}
	_, err := c.socket.Write(b)
	return err
}

// The page tells the credits. Launches by credit come in packets, have no answer, and take the
// credit of the offline share back and give it again.
func TestCredit(t *testing.T) {
	m := start(t, "", "reef")
	online, offline := m.connect(m.create(agent.Part{ID: "on", Memory: 1 << 20})), m.connect(m.create(agent.Part{ID: "off", Memory: 1 << 20, Offline: true}))
	credits := func(what string, a, b uint32) {
		t.Helper()
		m.until(what, func() bool {
			return online.state(t).GPUs[0].Credit == a && offline.state(t).GPUs[0].Credit == b
		})
	}
	credits("credits of both", share.MaxInFlight, 2)
	var launches, ends []wire.Message
	for id := range uint64(wire.MaxPacket) {
		launches = append(launches, wire.Message{Type: wire.Launch, ID: id, Arg: [wire.Args]uint64{80, 256, 1, 7, wire.Started}})
		ends = append(ends, wire.Message{Type: wire.Done, ID: id, Arg: [wire.Args]uint64{1000}})
	}
	if err := online.packet(launches...); err != nil {
		t.Fatal(err)
	}
	credits("a request holds the offline share", share.MaxInFlight, 0)
	if err := online.packet(ends...); err != nil {
		t.Fatal(err)
	}
	if err := online.packet(wire.Message{Type: wire.Idle}); err != nil {
		t.Fatal(err)
	}
	credits("the request has ended", share.MaxInFlight, 2)
	if s := m.shares()[0]; s.Launches != wire.MaxPacket || s.Processes[0].Wrong != 0 {
		t.Errorf("share %+v", s)
	}
	// Nothing was answered: the next answer is the one to the next request.
	if got := m.ask(online, wire.Message{Type: wire.Allocate, ID: 99, Bytes: 1}); got.Type != wire.Granted || got.ID != 99 {
		t.Errorf("answer %+v", got)
	}
}

// A packet of no whole messages, of too many, or with a wrong one ends the connection.
func TestWrongPackets(t *testing.T) {
	m := start(t, "", "reef")
	s := m.create(agent.Part{ID: "a", Memory: 100})
	one := wire.Message{Type: wire.Allocate, Bytes: 1}
	many := make([]byte, 0, (wire.MaxPacket+1)*wire.MessageSize)
	for range wire.MaxPacket + 1 {
		many = one.Append(many)
	}
	for name, packet := range map[string][]byte{
		"short": one.Append(nil)[:wire.MessageSize-1],
		"odd":   append(one.Append(nil), 1),
		"long":  many,
		"wrong": wire.Message{}.Append(nil),
	} {
		t.Run(name, func(t *testing.T) {
			c := m.connect(s)
			if _, err := c.socket.Write(packet); err != nil {
				t.Fatal(err)
			}
			for {
				got, err := c.receive()
				if err != nil {
					t.Fatal(err)
				}
				if got.Type == wire.Reject {
					if got.Arg[0] != uint64(wire.WrongMessage) {
						t.Errorf("rejected for %v", wire.Reason(got.Arg[0]))
					}
					break
				}
			}
		})
	}
}
