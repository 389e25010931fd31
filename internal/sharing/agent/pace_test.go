//go:build linux

package agent

import "testing"

// All connections of a share together have the messages of one, so more connections make no
// larger flood.
func TestPaceOfAShare(t *testing.T) {
	var p pace
	const connections = 64
	served := 0
	for range connections {
		for range paceMost {
			if p.next(paceTime/2, 1) == 0 {
				served++
			}
		}
	}
	if served != paceMost {
		t.Errorf("%d messages within %v, want %d", served, paceTime, paceMost)
	}
	if rest := p.next(paceTime/2, 1); rest != paceTime/2 {
		t.Errorf("the next message rests %v, want %v", rest, paceTime/2)
	}
	if rest := p.next(paceTime, 1); rest != 0 {
		t.Errorf("the first message of the next period rests %v", rest)
	}
}
