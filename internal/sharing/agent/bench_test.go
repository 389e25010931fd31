//go:build linux

package agent_test

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// BenchmarkPermits measures round trips of LAUNCH, PERMIT and DONE of clients at once, each in
// a share of its own. It reports permits per second of each client, and the processor time
// of this process, which is agent and clients together.
func BenchmarkPermits(b *testing.B) {
	for _, clients := range []int{1, 64} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			m := start(b, "", "orion")
			var all []*client
			for range clients {
				all = append(all, m.connect(m.create(agent.Part{Memory: 1 << 20, Limit: new(int64(999_000))})))
			}
			before := processorTime(b)
			done := make(chan error, clients)
			b.ResetTimer()
			for _, c := range all {
				go func() { done <- c.launches(b.N) }()
			}
			for range clients {
				if err := <-done; err != nil {
					b.Error(err)
				}
			}
			n := float64(b.N)
			b.ReportMetric(n/b.Elapsed().Seconds(), "permits/s/client")
			b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/n/float64(clients), "cpu-ns/permit")
		})
	}
}

// launches makes launches one after the other.
func (c *client) launches(n int) error {
	for i := range uint64(n) {
		if err := c.send(wire.Message{Type: wire.Launch, ID: i, Arg: [wire.Args]uint64{80, 256, 1, 7}}); err != nil {
			return err
		}
		if m, err := c.receive(); err != nil || m.Type != wire.Permit {
			return fmt.Errorf("answer %v, %w", m.Type, err)
		}
		if err := c.send(wire.Message{Type: wire.Done, ID: i, Arg: [wire.Args]uint64{1000}}); err != nil {
			return err
		}
	}
	return nil
}

// processorTime returns the processor time of this process.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkIdle measures the processor time of an agent with 64 connected clients that do
// nothing: heartbeats, sensors and the policy's clock. It sleeps for b.N milliseconds.
func BenchmarkIdle(b *testing.B) {
	m := start(b, "", "gemini")
	for range 64 {
		m.connect(m.create(agent.Part{Memory: 1 << 20, Limit: new(int64(500_000))}))
	}
	before := processorTime(b)
	b.ResetTimer()
	time.Sleep(time.Duration(b.N) * time.Millisecond)
	b.ReportMetric(100*(processorTime(b)-before).Seconds()/b.Elapsed().Seconds(), "cpu-%")
}

// BenchmarkCredit measures launches by credit of clients at once: packets of eight LAUNCHes and
// their DONEs, without answers.
func BenchmarkCredit(b *testing.B) {
	for _, clients := range []int{1, 64} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			m := start(b, "", "orion")
			var all []*client
			for range clients {
				all = append(all, m.connect(m.create(agent.Part{Memory: 1 << 20, Limit: new(int64(999_000))})))
			}
			before := processorTime(b)
			done := make(chan error, clients)
			b.ResetTimer()
			for _, c := range all {
				go func() { done <- c.credit(b.N) }()
			}
			for range clients {
				if err := <-done; err != nil {
					b.Error(err)
				}
			}
			n := float64(b.N)
			b.ReportMetric(n/b.Elapsed().Seconds(), "launches/s/client")
			b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/n/float64(clients), "cpu-ns/launch")
		})
	}
}

// credit makes launches by credit, and waits until the agent has read them.
func (c *client) credit(n int) error {
	const each = wire.MaxPacket / 2
	var packet []wire.Message
	for i := 0; i < n; i += each {
		packet = packet[:0]
		for k := range uint64(each) {
			id := uint64(i) + k
			packet = append(packet,
				wire.Message{Type: wire.Launch, ID: id, Arg: [wire.Args]uint64{80, 256, 1, 7, wire.Started}},
				wire.Message{Type: wire.Done, ID: id, Arg: [wire.Args]uint64{1000}})
		}
		if err := c.packet(packet...); err != nil {
			return err
		}
	}
	if err := c.send(wire.Message{Type: wire.Allocate, ID: 1}); err != nil {
		return err
	}
	_, err := c.receive()
	return err
}
