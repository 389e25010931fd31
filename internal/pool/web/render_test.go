package web

import (
	"strings"
	"testing"
)

// The page of a GPU whose time out of service is over, and that is not back in service yet,
// shows no time of the past.
func TestGPUAfterItsTimeOutOfService(t *testing.T) {
	w, _ := busyWorld(t)
	_, text := get(t, w.url+"/ui/gpus/r4-sw/5")
	_, rest, found := strings.Cut(text, "Out of service until")
	if cell, _, _ := strings.Cut(rest, "</div>"); !found || !strings.Contains(cell, "it is reset") {
		t.Errorf("found %v: %.200s", found, rest)
	}
}
