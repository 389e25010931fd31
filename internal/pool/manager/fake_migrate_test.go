package manager

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// move is what a fake node does in a live migration: all that it is told, unless it is to
// fail or to stand still.
type move struct {
	never  bool   // its devices cannot move
	why    string // never: for this reason
	fails  string // it reports the migration as failed; "": it does not
	stalls bool   // its report stays as it is
	copies bool   // a source copies and does not come to an end
	waits  bool   // a host does not decide
}

// hasSwitched reports whether a host has gone over to the successor of a binding that is
// wanted.
func (n *fakeNode) hasSwitched(has *dxpuv1.ObservedBinding, want *dxpuv1.DesiredBinding) bool {
	return has != nil && want.Successor != nil && has.BindingId == want.Successor.BindingId
}

// followMoves follows the migrations that are wanted.
func (n *fakeNode) followMoves() {
	for slot, want := range n.wants {
		if has := n.has[slot]; has.GetBindingId() == want.BindingId {
			n.move(want)
		}
	}
}

// move follows the migration that is wanted for a binding.
func (n *fakeNode) move(want *dxpuv1.DesiredBinding) {
	has := n.has[want.Slot]
	next := want.Successor
	if next == nil {
		next = want.Transfer.GetLink()
	}
	switch m := has.Migration; {
	case next == nil:
		if m != nil && m.BindingId != has.BindingId { // as a node that went over reports it to its end
			has.Migration = nil
		}
		return
	case n.moves.stalls || m.GetBindingId() == next.BindingId && m.State == migrationFailed:
		return
	case n.moves.fails != "":
		has.Migration = &dxpuv1.Migration{BindingId: next.BindingId, State: migrationFailed, Detail: n.moves.fails}
		return
	}
	m := &dxpuv1.Migration{BindingId: next.BindingId, State: migrationCopying}
	if n.box() && !want.Transfer.GetReceive() && !n.moves.copies {
		m.State = migrationReady
	}
	if !want.Switch || n.moves.waits || has.State != attached {
		has.Migration = m
		return
	}
	m.State, m.Pause = dxpuv1.MigrationState_MIGRATION_STATE_DONE, durationpb.New(3*time.Millisecond)
	n.has[want.Slot] = &dxpuv1.ObservedBinding{BindingId: next.BindingId, Epoch: next.Epoch, State: attached, Migration: m}
}
