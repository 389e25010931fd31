package soak

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// peers are the GPUs that others of the same virtual switch may access.
type peers struct {
	mu     sync.Mutex // guards the fields below
	bySlot map[int]*guest
}

// guest is a GPU whose session does not end while a peer accesses it.
type guest struct {
	gpu   *gpuUser
	users sync.WaitGroup
}

func newPeers() *peers { return &peers{bySlot: map[int]*guest{}} }

// join lets peers access a GPU.
func (p *peers) join(slot int, u *gpuUser) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bySlot[slot] = &guest{gpu: u}
}

// leave ends that and waits until no peer accesses the GPU. A device server never
// joined.
func (p *peers) leave(slot int) {
	p.mu.Lock()
	g := p.bySlot[slot]
	delete(p.bySlot, slot)
	p.mu.Unlock()
	if g != nil {
		g.users.Wait()
	}
}

// borrow returns a GPU of another slot of the switch; nil: there is none. The caller calls
// done when it no longer accesses the GPU.
func (p *peers) borrow(c *cluster, slot int, r *rand.Rand) (g *gpuUser, done func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	start := r.IntN(len(c.slots))
	for i := range c.slots {
		other := (start + i) % len(c.slots)
		if g := p.bySlot[other]; g != nil && other != slot && c.slots[other].on == c.slots[slot].on && !g.gpu.gone() {
			g.users.Add(1)
			return g.gpu, g.users.Done
		}
	}
	return nil, nil
}

const (
	// Each GPU has an area for its own data and one for the data of each of its peers.
	peerArea = 64 << 10
	// peerPause is the time until a lane without a peer looks for one again.
	peerPause = 20 * time.Millisecond
	// peerRests is the longest pause between two copies: each keeps four links busy.
	peerRests = 10 * time.Millisecond
)

// peerLane copies to GPUs of the same virtual switch and back, without host memory in
// between, until over returns true.
func (u *gpuUser) peerLane(r *rand.Rand, over func() bool) {
	stream, buf, ok := u.prepare(2 * peerArea)
	for ok && !over() {
		peer, done := u.peers.borrow(u.cluster, u.slot, r)
		if peer == nil {
			pause(peerPause)
			continue
		}
		n, seed := 1+r.IntN(peerArea), r.Uint64()
		ok = u.operation("copy by a peer", 4*n, func(ctx context.Context) error {
			err := u.throughPeer(ctx, stream, buf, peer, n, seed)
			var w wrongError
			if err != nil && !errors.As(err, &w) && peer.gone() {
				err = peerGoneError{err}
			}
			return err
		})
		done()
		if ok {
			u.ledger.add(func(a *Account) {
				if a.PeerBytes += 2 * uint64(n); u.cluster.slots[u.slot].box != u.cluster.slots[peer.slot].box {
					a.FarPeerBytes += 2 * uint64(n)
				}
			})
		}
		pause(between(r, 0, peerRests))
	}
}

// apertureAddress returns the bus address of the aperture of a GPU.
func apertureAddress(bus driver.Bus) (uint64, error) {
	const at = cfgspace.OffBAR0 + 4*reg.BARVRAM
	low, high := bus.ConfigRead32(at), bus.ConfigRead32(at+4)
	if low == 0xffff_ffff || high == 0xffff_ffff {
		return 0, errAllOnes
	}
	return uint64(high)<<32 | uint64(low&^0xf), nil
}

// gone reports whether the GPU is lost. Its own session accounts for that.
func (u *gpuUser) gone() bool {
	select {
	case <-u.bus.Lost():
		return true
	default:
		return u.ended.Load()
	}
}

// peerGoneError is the failure of an operation whose peer is gone.
type peerGoneError struct{ error }

// throughPeer copies n bytes from host memory to this GPU, from there to the peer by
// writes, back by reads, and to host memory.
func (u *gpuUser) throughPeer(ctx context.Context, stream *driver.Stream, buf driver.DMA, peer *gpuUser, n int, seed uint64) error {
	fill(buf.Bytes()[:n], seed)
	clear(buf.Bytes()[peerArea : peerArea+n])
	const own, back = peersBase, peersBase + peerArea
	there := peersBase + uint64(2+u.cluster.slots[u.slot].at)*peerArea
	if err := errors.Join(
		stream.CopyToDevice(ctx, own, buf, 0, n),
		stream.Submit(ctx, reg.CopyFromVRAM(0, peer.window+there, own, uint64(n))),
		stream.CopyPeer(ctx, back, peer.dev, driver.Ptr(there), uint64(n)),
		stream.CopyToHost(ctx, buf, peerArea, back, n),
		stream.Sync(ctx),
	); err != nil {
		return err
	}
	if i := differs(buf.Bytes()[peerArea:peerArea+n], seed); i >= 0 {
		return wrong("byte %d of %d came back wrong from the GPU of slot %d", i, n, peer.slot)
	}
	return nil
}
