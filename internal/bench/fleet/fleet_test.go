package fleet

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"
)

const childFlag = "DXPU_TEST_FLEET_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childFlag) != "" {
		if err := Serve(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Run works as in "dxpu bench manager", with 32 nodes, not 22,500.
func TestRun(t *testing.T) {
	for name, dir := range map[string]string{"memory": "", "etcd": t.TempDir()} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(childFlag, "1") // inherited by the manager's process
			r, err := Run(t.Context(), Spec{
				Hosts: 20, SlotsPerHost: 4, Boxes: 12, GPUsPerBox: 4, Leases: 30, AtOnce: 8, NodesPerConnection: 4,
				Idle: 100 * time.Millisecond, Timeout: time.Minute, Dir: dir, Child: os.Args[:1], Heartbeat: 250 * time.Millisecond,
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v", *r)
			for what, w := range map[string]Work{"enroll": r.Enroll, "create": r.Create, "attach": r.Attach, "detach": r.Detach, "restart": r.Restart} {
				if w.Count == 0 || w.TookNS <= 0 || w.PerSecond <= 0 {
					t.Errorf("%s: %+v", what, w)
				}
			}
			if r.Enrolled.Heap == 0 || r.Enrolled.RSS == 0 || r.RestartServesNS <= 0 || len(r.Calls) < 8 {
				t.Errorf("%+v", *r)
			}
			for _, c := range r.Calls {
				if c.P50NS <= 0 || c.P99NS < c.P50NS {
					t.Errorf("%+v", c)
				}
			}
		})
	}
}

func TestSpecIsChecked(t *testing.T) {
	if _, err := Run(t.Context(), Spec{Hosts: 2, SlotsPerHost: 4, Boxes: 2, GPUsPerBox: 8, Leases: 9}); err == nil {
		t.Error("nine leases on eight slots of hosts are accepted")
	}
}
