//go:build linux

package cli

import (
	"errors"
	"fmt"
	"testing"

	"github.com/dxpu-project/dxpu/internal/pool/etcdstore"
)

// A member that was replaced ends with the code after which its unit does not start again.
func TestReplacedManagerIsRefused(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
	}{
		{fmt.Errorf("manager: %w", etcdstore.ErrReplaced), exitRefused},
		{errors.New("no space left on device"), exitFailure},
	} {
		if code := exitCode(endOf(c.err)); code != c.code {
			t.Errorf("%v: exit code %d, want %d", c.err, code, c.code)
		}
	}
}
