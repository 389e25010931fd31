package web

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// TestFormSentTwice sends each form that changes the pool twice, as a double click does.
// Both answers are the same, and the pool changes once.
func TestFormSentTwice(t *testing.T) {
	w, lease := busyWorld(t)
	w.token(dxpuv1.Role_ROLE_TENANT, "speech")
	for _, tt := range []struct {
		name   string
		fields url.Values
	}{
		{"create", url.Values{"do": {"create"}, "count": {"1"}, "host": {"h08"}, "tenant": {"speech"}, "wait": {"yes"}}},
		{"create in the queue", url.Values{"do": {"create"}, "count": {"8"}, "host": {"h01"}, "tenant": {"speech"}, "hours": {"2"}, "wait": {"yes"}}},
		{"replace", url.Values{"do": {"replace"}, "id": {"r4-sw/4"}, "force": {"yes"}}},
		{"resize", url.Values{"do": {"resize"}, "id": {lease}, "count": {"2"}}},
		{"cordon", url.Values{"do": {"cordon"}, "kind": {"box"}, "id": {"r4-nv"}, "reason": {"dust"}}},
		{"uncordon", url.Values{"do": {"uncordon"}, "kind": {"box"}, "id": {"r4-nv"}}},
		{"drain", url.Values{"do": {"drain"}, "kind": {"box"}, "id": {"r2-nv"}, "deadline": {"500"}}},
		{"clear", url.Values{"do": {"clear"}, "id": {"r4-sw/5"}}},
		{"delete", url.Values{"do": {"delete"}, "id": {lease}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.fields.Set("request", rand.Text())
			before := w.history(t)
			first, _ := post(t, w.url+"/ui/do", maps.Clone(tt.fields))
			once := w.history(t)
			second, body := post(t, w.url+"/ui/do", maps.Clone(tt.fields))
			if first.StatusCode != http.StatusSeeOther || second.StatusCode != http.StatusSeeOther {
				t.Fatalf("%s, then %s: %s", first.Status, second.Status, body)
			}
			if a, b := first.Header.Get("Location"), second.Header.Get("Location"); a != b {
				t.Errorf("the first form leads to %s, the second to %s", a, b)
			}
			if a, b := cookieOf(first, noticeCookie).Value, cookieOf(second, noticeCookie).Value; a != b {
				t.Errorf("the first form is confirmed by %s, the second by %s", a, b)
			}
			if twice := w.history(t); len(once) == len(before) || len(twice) != len(once) {
				t.Errorf("%d events after the first form, %d more after the second: %q", len(once)-len(before), len(twice)-len(once), twice[len(before):])
			}
		})
	}
}

// history returns the messages of all events.
func (w *world) history(t *testing.T) (out []string) {
	t.Helper()
	res, err := w.pool.ListEvents(t.Context(), connect.NewRequest(&dxpuv1.ListEventsRequest{PageSize: 1000}))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range res.Msg.Events {
		out = append(out, e.Message)
	}
	return out
}

// TestFormChanged checks that a form with a changed field makes another lease, also if
// the page is the same, and that a form without the number of its page has no effect.
func TestFormChanged(t *testing.T) {
	w := idleWorld(t, 2, 2)
	w.settle()
	to := func(fields url.Values, status int) string {
		t.Helper()
		res, body := post(t, w.url+"/ui/do", fields)
		if res.StatusCode != status {
			t.Fatalf("%s: %s", res.Status, body)
		}
		return res.Header.Get("Location")
	}
	number := rand.Text()
	fields := func(model string) url.Values {
		return url.Values{"do": {"create"}, "count": {"1"}, "host": {"host-01"}, "model": {model}, "wait": {"yes"}, "request": {number}}
	}
	if one, two := to(fields(""), 303), to(fields("DX200"), 303); one == two {
		t.Errorf("two requests lead to %s", one)
	}
	for _, wrong := range []string{"", "short", strings.Repeat("a", 26), strings.Repeat("A", 200)} {
		f := fields("")
		f.Set("request", wrong)
		to(f, 403)
	}
}

// TestPagesHaveNumbers checks that two copies of a page, which share one rendering, have
// forms with different numbers.
func TestPagesHaveNumbers(t *testing.T) {
	w, _ := busyWorld(t)
	number := regexp.MustCompile(`name="request" value="([A-Z2-7]{26})" autocomplete="off"`)
	seen := map[string]bool{}
	for range 2 {
		for _, header := range []string{"", "0"} { // the whole page, and its update
			_, body := get(t, w.url+"/ui/leases", afterHeader, header)
			m := number.FindStringSubmatch(body)
			if m == nil || m[1] == numberPlaceholder || strings.Contains(body, numberPlaceholder) {
				t.Fatalf("no number in %s", body)
			}
			seen[m[1]] = true
		}
	}
	if len(seen) != 4 {
		t.Errorf("4 pages have %d numbers", len(seen))
	}
}

// TestOutcomes checks the answers to forms that arrive several times.
func TestOutcomes(t *testing.T) {
	o := &outcomes{known: map[string]*outcome{}}
	synctest.Test(t, func(t *testing.T) {
		ctx, dropped := context.WithCancel(t.Context())
		var times int
		slow := func(ctx context.Context) (string, string, error) {
			times++
			time.Sleep(time.Second) // of virtual time
			return "done", "/next", ctx.Err()
		}
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				out, err := o.of([]context.Context{ctx, t.Context(), t.Context()}[i], "one", slow)
				if i > 0 && (err != nil || out.notice != "done" || out.next != "/next") {
					t.Errorf("request %d: %+v, %v", i, out, err)
				}
			})
			synctest.Wait()
		}
		dropped() // the browser drops the first of several requests
		wg.Wait()
		if times != 1 {
			t.Errorf("3 requests had effect %d times", times)
		}
	})
	failed, fails := 0, func(context.Context) (string, string, error) { return "", "", errors.New("full") }
	for range 2 {
		if _, err := o.of(t.Context(), "two", func(ctx context.Context) (string, string, error) { failed++; return fails(ctx) }); err == nil {
			t.Error("an error was lost")
		}
	}
	if failed != 2 {
		t.Errorf("a form that failed was tried %d times, want 2", failed)
	}
	fine := func(context.Context) (string, string, error) { return "", "", nil }
	for i := range 3 * maxOutcomes {
		if _, err := o.of(t.Context(), fmt.Sprint(i), fine); err != nil {
			t.Fatal(err)
		}
	}
	if len(o.known) > maxOutcomes || len(o.order) > maxOutcomes {
		t.Errorf("%d outcomes are known, %d in order", len(o.known), len(o.order))
	}
}
