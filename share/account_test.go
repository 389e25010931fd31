package share_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// A limit pays a debt also while no policy runs.
func TestDebtOfLongAgo(t *testing.T) {
	for _, policy := range []string{"gemini", "gaiapi"} {
		c := newChecker(t, policy, share.Device{SMs: 80, ThreadsPerSM: 2048, Memory: 16 << 30})
		c.join(1, share.ClientSpec{Limit: share.Percent(10), Request: share.Percent(10)})
		p := c.policy.(share.Accountant)
		const owed = 12 * time.Second
		for ago, want := range map[time.Duration]time.Duration{0: owed, time.Minute: owed - 6*time.Second, time.Hour: 0, 1 << 62: 0, -time.Hour: owed} {
			p.Charge(0, 1, share.Account{Owed: owed}, ago)
			if got := p.Account(0, 1).Owed; got != want {
				t.Errorf("%s: of %v, %v ago, it owes %v; want %v", policy, owed, ago, got, want)
			}
		}
	}
}
