package manager

import (
	"fmt"
	"strings"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/gpuerr"
)

// The rules that follow a report write the state of the repair of each GPU into the record of its
// box. A record at its bound has room for that, however many GPUs are due at once, and the
// explanations of the errors give way.
func TestRoomForRepairs(t *testing.T) {
	zone := time.FixedZone("", 5*3600+45*60) // its times are longer than those of UTC
	// repairs returns the size of the record of a box of which all GPUs have an error with an
	// explanation of some characters: after the report, and at most until they are repaired.
	repairs := func(length int) (first, most int) {
		w := newWorld(t, Config{Quarantine: gpuerr.Backoff{Base: 500 * time.Millisecond, Max: time.Minute}}, boxNode("b1", maxSlots))
		w.clock.set(time.Unix(1_700_000_000, 123_456_789).In(zone))
		_ = w.m.update(t.Context(), func(tx *tx) error {
			tx.meta.Revision = 1 << 60 // as many digits as after a restore
			return nil
		})
		for range 4 { // the quarantine ends, the box resets
			w.deliver("b1")
			o := w.nodes["b1"].observe()
			for _, s := range o.Slots {
				s.Device.Serial = fmt.Sprintf("1320921%06d", s.Slot)
				s.Errors = append(s.Errors, &dxpuv1.DeviceError{Code: 79, Count: 1, Detail: strings.Repeat("<", length)})
			}
			if _, _, err := w.m.report(t.Context(), o, func(*tx) error { return nil }); err != nil {
				t.Fatal(err)
			}
			if first == 0 {
				first = len(w.encoded()["node/b1"])
			}
			w.pass(600 * time.Millisecond)
			most = max(most, len(w.encoded()["node/b1"]))
		}
		_ = w.m.view(func(tx *tx) error {
			if c := tx.nodes.get("b1").slot(7).Fault; c.Done == 0 || c.Returned.IsZero() || len(c.Errors) == 0 {
				t.Fatalf("the test does not reach the repair: %+v", c)
			}
			return nil
		})
		return first, most
	}
	const short, perLine = 40, 6 * maxSlots // JSON has six bytes for '<'
	size, _ := repairs(short)
	bound := short + (maxNode-size)/perLine
	for _, length := range []int{bound - 60, bound - 40, bound - 20, bound - 1, bound, bound + 1} {
		if _, most := repairs(length); most > maxRecord {
			t.Errorf("explanations of %d characters: the record has %d bytes, at most %d", length, most, maxRecord)
		}
	}
}
