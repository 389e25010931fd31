//go:build linux

package cli

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestCoHDIFlag: only --cohdi opens the paths of the fabric manager.
func TestCoHDIFlag(t *testing.T) {
	api := http.NotFoundHandler()
	for _, on := range []bool{false, true} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("GET", "/fabric_manager/api/v1/machines", nil)
		(&managerOptions{cohdi: on}).handler(api).ServeHTTP(w, r)
		// Without tenant_uuid the interface refuses the request.
		want := http.StatusNotFound
		if on {
			want = http.StatusBadRequest
		}
		if w.Code != want {
			t.Errorf("--cohdi=%v: status %d, want %d: %s", on, w.Code, want, w.Body)
		}
	}
}
