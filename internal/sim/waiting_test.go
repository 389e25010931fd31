package sim

import (
	"fmt"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/fault"
)

// A migration that is ready to switch keeps no processor busy while the manager is away.
func TestReadyMigrationRests(t *testing.T) {
	o, err := newOrdering(1, fault.Plan{Delay: 5 * time.Microsecond}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	for i := range mixers {
		o.attach(t, i)
	}
	o.epoch++
	o.next[0] = &move{epoch: o.epoch, to: len(o.devices) - 1}
	o.apply()
	id := fmt.Sprint("b", o.epoch)
	if !o.RunUntil(o.Now()+time.Second, func() bool {
		m := o.atBox(o.at[0]).GetMigration()
		return m.GetBindingId() == id && m.GetState() == dxpuv1.MigrationState_MIGRATION_STATE_READY
	}) {
		t.Fatal("the migration is not ready")
	}
	const most = 10_000 // looks, pings and acknowledgements of a second
	events := 0
	if o.RunUntil(o.Now()+time.Second, func() bool { events++; return events > most }) {
		t.Errorf("more than %d events until %v", most, o.Now())
	}
}
