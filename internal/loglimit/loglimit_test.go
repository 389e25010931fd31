package loglimit_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/loglimit"
)

// log is a limited log in virtual time.
type log struct {
	t   *testing.T
	h   *loglimit.Handler
	out bytes.Buffer // the last 64 KiB
	n   int          // lines
	now time.Time
}

// Write counts a line.
func (l *log) Write(line []byte) (int, error) {
	if l.n++; l.out.Len() > 1<<16 {
		l.out.Reset()
	}
	return l.out.Write(line)
}

func newLog(t *testing.T) *log {
	l := &log{t: t, now: time.Unix(1e9, 0)}
	l.h = loglimit.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return l
}

// write logs n lines and returns the number of those that passed.
func (l *log) write(h slog.Handler, n int, level slog.Level, message string, attrs ...slog.Attr) int {
	l.t.Helper()
	before := l.n
	for range n {
		r := slog.NewRecord(l.now, level, message, 0)
		r.AddAttrs(attrs...)
		if err := h.Handle(context.Background(), r); err != nil {
			l.t.Fatal(err)
		}
	}
	return l.n - before
}

// A cause that goes on for a day leaves its allowance and says what is missing.
// Other causes and other slots have their own.
func TestFloodIsCut(t *testing.T) {
	l := newLog(t)
	slot0, slot1 := slog.Int("slot", 0), slog.Int("slot", 1)
	if n := l.write(l.h, 1000, slog.LevelWarn, "device reports an error", slot0); n != 50 {
		t.Errorf("%d of 1000 lines passed, want 50", n)
	}
	if n := l.h.Suppressed(); n != 950 {
		t.Errorf("%d suppressed, want 950", n)
	}
	for name, n := range map[string]int{
		"another slot":          l.write(l.h, 1, slog.LevelWarn, "device reports an error", slot1),
		"another slot, by With": l.write(l.h.WithAttrs([]slog.Attr{slog.Int("slot", 2)}), 1, slog.LevelWarn, "device reports an error"),
		"another message":       l.write(l.h, 1, slog.LevelWarn, "binding", slot0),
		"another level":         l.write(l.h, 1, slog.LevelError, "device reports an error", slot0),
	} {
		if n != 1 {
			t.Errorf("%s: %d lines passed, want 1", name, n)
		}
	}
	if n := l.write(l.h.WithAttrs([]slog.Attr{slot0}), 1, slog.LevelWarn, "device reports an error"); n != 0 {
		t.Error("the same slot by With has an allowance of its own")
	}
	if n := l.write(l.h, 1000, slog.LevelDebug, "a detail", slot0); n != 1000 {
		t.Errorf("%d of 1000 lines of level debug passed", n)
	}
	l.out.Reset()
	l.now = l.now.Add(10 * time.Second)
	if n := l.write(l.h, 10, slog.LevelWarn, "device reports an error", slot0); n != 1 {
		t.Errorf("%d lines passed after ten seconds, want 1", n)
	}
	if !strings.Contains(l.out.String(), "suppressed=951") {
		t.Errorf("the line does not say how many are missing: %s", l.out.String())
	}
	passed := 0
	for end := l.now.Add(24 * time.Hour); l.now.Before(end); l.now = l.now.Add(100 * time.Millisecond) {
		passed += l.write(l.h, 1, slog.LevelWarn, "device reports an error", slot0)
	}
	if passed > 24*360+50 {
		t.Errorf("%d lines in a day", passed)
	}
}

// The number of causes is bounded, and a known cause keeps its allowance.
func TestManyCauses(t *testing.T) {
	l := newLog(t)
	for i := range 5000 {
		l.write(l.h, 1, slog.LevelInfo, fmt.Sprint("message ", i))
	}
	if l.n != 4096+50 {
		t.Errorf("%d lines passed, want those of 4096 causes, and 50 of all others", l.n)
	}
	l.now = l.now.Add(time.Hour)
	if n := l.write(l.h, 60, slog.LevelInfo, "another message"); n != 50 {
		t.Errorf("%d lines of a new cause passed, want 50", n)
	}
}

func TestGroups(t *testing.T) {
	l := newLog(t)
	if n := l.write(l.h.WithGroup("g"), 60, slog.LevelInfo, "m", slog.Int("slot", 1)); n != 50 || !strings.Contains(l.out.String(), "g.slot=1") {
		t.Errorf("%d lines passed: %.80s", n, l.out.String())
	}
	if !l.h.Enabled(context.Background(), slog.LevelDebug) {
		t.Error("the level of the next handler does not apply")
	}
}

// Shares come and go, and each floods the log until its end. A share has an allowance of its own
// beside them, also after more of them than the handler remembers.
func TestSharesAreForgotten(t *testing.T) {
	l := newLog(t)
	for i := range 6000 {
		id := slog.String("share", fmt.Sprint("s-", i))
		l.write(l.h, 60, slog.LevelInfo, "process is refused", id)
		l.now = l.now.Add(time.Second)
		if n := l.write(l.h, 60, slog.LevelInfo, "process is refused", slog.String("share", fmt.Sprint("other-", i))); n != 50 {
			t.Fatalf("after %d shares %d lines of another one passed, want 50", i, n)
		}
	}
}

// TestGPUsHaveTheirOwn: the errors of one GPU leave those of another one, and of its shares, their
// allowance.
func TestGPUsHaveTheirOwn(t *testing.T) {
	l := newLog(t)
	share := slog.String("share", "s1")
	for _, attrs := range [][]slog.Attr{
		{slog.String("gpu", "a")}, {slog.String("gpu", "b")}, {share, slog.String("gpu", "a")}, {share, slog.String("gpu", "b")}, {share},
	} {
		if n := l.write(l.h, 200, slog.LevelError, "error of a GPU", attrs...); n != 50 {
			t.Errorf("%v: %d of 200 lines passed, want 50", attrs, n)
		}
	}
	if n := l.write(l.h.WithAttrs([]slog.Attr{share}), 200, slog.LevelError, "error of a GPU", slog.String("gpu", "a")); n != 0 {
		t.Errorf("%d lines passed of a share and a GPU whose allowance is spent", n)
	}
}
