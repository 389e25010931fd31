package transaction_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// asked is a request whose completion has not come.
type asked struct {
	cookie uint64
	packet tlp.Packet
	ended  time.Duration // when it timed out or was canceled
	open   bool
}

// No completion ends another request than its own during a quarantine, whatever happens to the
// number of tags meanwhile, and no tag is lost.
func TestLateCompletionsWhileTheTagsChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 12
		tags := rapid.IntRange(1, most).Draw(t, "tags")
		r := transaction.NewRequester(transaction.RequesterConfig{ID: device, Tags: tags})
		var now time.Duration
		var cookies uint64
		var due []*asked
		end := func(res transaction.Result) {
			for _, a := range due {
				if a.cookie == res.Cookie {
					a.open, a.ended = false, now
				}
			}
		}
		actions := map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				p := read(0x1000, 8)
				before := r.Free(now)
				if before > tags {
					t.Fatalf("%d of %d tags are free", before, tags)
				}
				timeout := time.Duration(rapid.IntRange(1, 500).Draw(t, "timeout")) * time.Millisecond
				cookies++
				if ok := r.Begin(now, now+timeout, &p, make([]byte, 8), cookies); ok != (before > 0) {
					t.Fatalf("Begin = %v with %d free tags", ok, before)
				} else if !ok {
					return
				}
				if int(p.Tag) >= tags {
					t.Fatalf("tag %d of %d", p.Tag, tags)
				}
				due = slices.DeleteFunc(due, func(a *asked) bool { // whose quarantine is over
					if a.packet.Tag != p.Tag {
						return false
					}
					if a.open || now-a.ended < transaction.DefaultQuarantine {
						t.Fatalf("tag %d again, after %v, still open: %v", p.Tag, now-a.ended, a.open)
					}
					return true
				})
				due = append(due, &asked{cookie: cookies, packet: p, open: true})
			},
			"complete": func(t *rapid.T) {
				if len(due) == 0 {
					return
				}
				i := rapid.IntRange(0, len(due)-1).Draw(t, "which")
				a := due[i]
				due = slices.Delete(due, i, i+1)
				c := complete(&a.packet, 0x1000, 8, make([]byte, 8))
				if res, ok := r.Complete(&c); ok != a.open || ok && (res.Cookie != a.cookie || !res.Done) {
					t.Fatalf("the completion of request %d, open: %v, gives %+v, %v", a.cookie, a.open, res, ok)
				}
			},
			"time": func(t *rapid.T) {
				now += time.Duration(rapid.IntRange(0, 700).Draw(t, "ms")) * time.Millisecond
				r.Expire(now, nil, end)
			},
			"cancel": func(*rapid.T) { r.CancelAll(now, end) },
			"tags": func(t *rapid.T) {
				tags = rapid.IntRange(1, most).Draw(t, "new tags")
				r.SetTags(tags)
			},
			"": func(t *rapid.T) {
				open := 0
				for _, a := range due {
					if a.open {
						open++
					}
				}
				if r.InFlight() != open || r.Tags() != tags {
					t.Fatalf("%d in flight and %d tags, want %d and %d", r.InFlight(), r.Tags(), open, tags)
				}
			},
		}
		t.Repeat(actions)
		now = machine.After(now, 2*time.Second)
		r.Expire(now, nil, end)
		if got := r.Free(now + transaction.DefaultQuarantine); got != tags {
			t.Fatalf("%d of %d tags are free in the end", got, tags)
		}
	})
}

// The number of tags has bounds.
func TestSetTagsBounds(t *testing.T) {
	r := transaction.NewRequester(transaction.RequesterConfig{Tags: 4})
	for _, c := range []struct{ n, want int }{{0, 1}, {-1, 1}, {4, 4}, {pcie.MaxTags + 1, pcie.MaxTags}} {
		r.SetTags(c.n)
		if r.Tags() != c.want || r.Free(0) != c.want {
			t.Errorf("SetTags(%d): %d tags, %d free, want %d", c.n, r.Tags(), r.Free(0), c.want)
		}
	}
}
