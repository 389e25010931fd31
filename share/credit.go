package share

// Credit says how many launches of a client may be in flight without a permit each.
type Credit struct {
	Client   ClientID
	Launches int32 // at most MaxInFlight
}

// Creditor is a policy that can tell in advance which launches it would permit at once. An
// enforcement far from its clients, for which a permit is a round trip, publishes the
// credits: a client with one launches first and is announced later. One that asks for
// each permit needs none.
type Creditor interface {
	Policy
	// Credits appends the credits of the clients that have one, as the policy is after its
	// last Transmit that decided nothing more: as long as no other event comes and no time
	// passes, it permits each launch of the client that comes while fewer than that many
	// are in flight, unless it is expected to take longer than those that completed. A
	// client without one has to ask for each launch.
	Credits(out []Credit) []Credit
}

// ahead is the highest credit of a client that a policy limits by a budget. Ours.
const ahead = 8

// within returns the credit of a client with a budget, if its largest launch costs most: twice as
// many of these fit the budget. The client goes on until the policy has heard of its launches, and
// pays from the next budget for what was too much.
func within(budget, most int64) int32 {
	if most <= 0 || budget <= 0 {
		return 0
	}
	return int32(min(budget/most/2, ahead))
}

// credit appends the credit of a client, if it may launch at all.
func (c *client[S]) credit(out []Credit, n int32) []Credit {
	if n <= 0 || c.evict != NoReason || c.leaving {
		return out
	}
	return append(out, Credit{c.id, n})
}

// creditOnline appends the highest credit for all online clients: the policy never holds
// them.
func (k *core[S]) creditOnline(out []Credit) []Credit {
	for _, c := range k.clients {
		if c.spec.Class == Online {
			out = c.credit(out, MaxInFlight)
		}
	}
	return out
}
