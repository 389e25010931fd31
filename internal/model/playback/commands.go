package playback

import (
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// Pieces of copies. A piece to the device is large, as each ends with a round
// trip that is not full; one to the host is small, so that what is posted behind
// it does not wait for more than the recorded rate explains.
const (
	uploadPiece   = 8 << 20
	downloadPiece = 64 << 10
)

// Device memory: copies land in the first part, the first request of each in
// the second, so that it does not overlap the rest and both go out at once.
const (
	firstAt  = uploadPiece
	vramSize = uploadPiece + 64<<10
)

// commands puts an operation into the ring of its queue.
func (m *player) commands(i int32) {
	op, d := &m.w.Ops[i], m.plan.Op(i)
	q := m.queue(i)
	r := &m.rings[q]
	wait := func(on int32) { r.put(reg.Wait(0, uint32(m.queue(on)), uint64(m.place[on])+1)) }
	for on := range m.plan.StreamWaits(i) {
		if m.queue(on) != q {
			wait(on)
		}
	}
	if d.Cross != none && m.queue(d.Cross) != q {
		wait(d.Cross)
		r.delay(m.spread(d.CrossLag))
	}
	busy := m.spread(max(op.Dur+min(m.tail[i], 0), 0))
	switch {
	case op.Kind == workload.CopyHtoD && op.Bytes > 0:
		m.upload(r, uint64(op.Bytes), busy)
	case op.Kind == workload.CopyDtoH && op.Bytes > 0:
		m.download(r, uint64(op.Bytes), busy)
	default:
		r.delay(busy)
	}
	if m.crossed[i] {
		r.put(reg.Signal(0, uint32(q), uint64(m.place[i])+1))
	}
	if m.fenced[i] {
		r.putFence(i)
	}
	r.delay(m.spread(max(m.tail[i], 0)))
}

// upload copies n bytes to the device: one request, whose latency shows, and
// the rest at the rate that Equation 1 or the recording allows, whichever is
// less.
func (m *player) upload(r *ring, n uint64, busy time.Duration) {
	first := min(n, m.request)
	rest := max(busy-m.trip, 0)
	r.put(reg.CopyToVRAM(0, firstAt, m.data, first))
	if n -= first; n == 0 {
		r.delay(rest)
		return
	}
	pieces(n, uploadPiece, rest, func(size uint64, least time.Duration) {
		r.put(reg.CopyToVRAM(0, 0, m.data, size))
		r.delaySince(least)
	})
}

// download copies n bytes to the host, no faster than recorded.
func (m *player) download(r *ring, n uint64, busy time.Duration) {
	pieces(n, downloadPiece, busy, func(size uint64, least time.Duration) {
		r.put(reg.CopyFromVRAM(0, m.data, 0, size))
		r.delaySince(least)
	})
}

// pieces cuts n bytes that take busy in all.
func pieces(n, size uint64, busy time.Duration, emit func(size uint64, least time.Duration)) {
	for done := uint64(0); done < n; done += size {
		end := min(done+size, n)
		share := func(at uint64) time.Duration { return time.Duration(float64(busy) * (float64(at) / float64(n))) }
		emit(end-done, share(end)-share(done))
	}
}
