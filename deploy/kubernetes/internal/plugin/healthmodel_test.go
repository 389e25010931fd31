package plugin

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/cdi"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/devicedata"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

// watched is a node whose kubelet follows the health of devices, and connects again.
type watched struct {
	*testing.T
	plugin *Plugin
	random *rand.Rand
	stop   context.CancelFunc // of the stream
	ended  chan error

	mu         sync.Mutex // guards the fields below
	claims     []*resourceapi.ResourceClaim
	unreadable map[string]bool // by name
	report     string          // the last
}

// anyAccess opens all devices.
type anyAccess struct{}

func (anyAccess) Open(_ context.Context, _ int, devices []devicedata.Data, _ func(string) error) (cdi.Edits, []Attributes, error) {
	return cdi.Edits{}, make([]Attributes, len(devices)), nil
}

// TestHealthModel compares what the kubelet has heard with a model, while claims come, go, fail and cannot
// be read, and while its stream ends and begins again: it has the present health one pause later.
func TestHealthModel(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			p, _ := socketPlugin(t)
			synctest.Test(t, func(t *testing.T) {
				w := &watched{T: t, plugin: p, random: rand.New(rand.NewPCG(seed, 3)), unreadable: map[string]bool{}}
				p.Claim, p.Access = w.claim, anyAccess{}
				w.connect()
				for i := range 200 {
					w.step(i)
				}
				w.stop()
				if err := <-w.ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func (w *watched) claim(_ context.Context, _, name string) (*resourceapi.ResourceClaim, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unreadable[name] {
		return nil, errors.New("no route")
	}
	for _, c := range w.claims {
		if c.Name == name {
			return c.DeepCopy(), nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "resourceclaims"}, name)
}

// connect begins a stream, after the end of the one before.
func (w *watched) connect() {
	if w.stop != nil {
		w.stop()
		if err := <-w.ended; err != nil {
			w.Error(err)
		}
	}
	ctx, stop := context.WithCancel(w.Context())
	s := &healthStream{ctx: ctx, sent: make(chan string)}
	w.stop, w.ended = stop, make(chan error, 1)
	w.mu.Lock()
	w.report = "nothing yet"
	w.mu.Unlock()
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		for report := range s.sent {
			w.mu.Lock()
			w.report = report
			w.mu.Unlock()
		}
	}()
	ended := w.ended
	go func() {
		err := w.plugin.NodeWatchResources(nil, s)
		close(s.sent)
		<-heard
		ended <- err
	}()
}

func (w *watched) step(i int) {
	w.mu.Lock()
	k, n := w.random.IntN(8), len(w.claims)
	w.mu.Unlock()
	switch {
	case k < 2 && n < 4:
		c := claim(condition(inventory.Attached, "True"))
		c.Name, c.UID = fmt.Sprint("c", i), types.UID(fmt.Sprint("u", i))
		c.Status.Allocation.Devices.Results, c.Status.Devices = c.Status.Allocation.Devices.Results[:1], c.Status.Devices[:1]
		c.Status.Allocation.Devices.Results[0].Device, c.Status.Devices[0].Device = c.Name, c.Name
		w.mu.Lock()
		w.claims = append(w.claims, c)
		w.mu.Unlock()
		if r := prepare(w.T, w.plugin, c.DeepCopy()); r.Err != nil {
			w.Error(r.Err)
		}
	case k == 2 && n > 0:
		w.mu.Lock()
		c := w.claims[0]
		w.claims = w.claims[1:]
		w.mu.Unlock()
		if w.random.IntN(2) == 0 { // else its pod has not ended on this node
			if _, err := w.plugin.UnprepareResourceClaims(w.Context(), []kubeletplugin.NamespacedObject{{UID: c.UID}}); err != nil {
				w.Error(err)
			}
		}
	case k < 6 && n > 0:
		w.mu.Lock()
		c := w.claims[w.random.IntN(n)]
		is := []metav1.ConditionStatus{"True", "False", "Unknown"}[w.random.IntN(3)]
		meta.SetStatusCondition(&c.Status.Devices[0].Conditions, metav1.Condition{Type: inventory.Healthy, Status: is, Reason: "R"})
		w.unreadable = map[string]bool{}
		if w.random.IntN(2) == 0 {
			w.unreadable[w.claims[w.random.IntN(n)].Name] = true
		}
		w.mu.Unlock()
	case k == 6:
		w.connect()
	}
	time.Sleep(healthEvery + time.Second)
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if want := w.want(); w.report != want {
		w.Errorf("step %d: the kubelet heard %q, want %q", i, w.report, want)
	}
}

// want returns the report of the present health.
func (w *watched) want() string {
	words := map[metav1.ConditionStatus]string{"": "HEALTHY ", "True": "HEALTHY ", "False": "UNHEALTHY R", "Unknown": "UNKNOWN R"}
	var out []string
	for _, c := range w.claims {
		is := metav1.ConditionStatus("")
		if h := meta.FindStatusCondition(c.Status.Devices[0].Conditions, inventory.Healthy); h != nil {
			is = h.Status
		}
		if !w.unreadable[c.Name] {
			out = append(out, fmt.Sprintf("dxpu/b1/%s %s", c.Name, words[is]))
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}
