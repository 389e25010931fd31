package boxproxy

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/boxproxy/controller"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/link"
)

// attaching is a group that notes what is attached.
type attaching struct {
	engine.GroupDriver
	got engine.BindingConfig
}

func (*attaching) Enter() engine.Entry { return engine.Entry{} }

func (*attaching) Leave(engine.Entry) {}

func (a *attaching) Attach(_ engine.Entry, cfg engine.BindingConfig) (*engine.Binding, error) {
	a.got = cfg
	return new(engine.Binding), nil
}

// The slot keeps neither the secret nor the ephemeral key of an open link: with them
// a later thief could read what was recorded.
func TestSlotKeepsNoKeys(t *testing.T) {
	g := new(attaching)
	s := &slot{domain: &domain{group: g}}
	s.config.Link = link.Config{Binding: 7, Secret: [32]byte{1}, Ephemeral: [32]byte{2}}
	if err := s.attach(false); err != nil {
		t.Fatal(err)
	}
	if g.got.Link.Binding != 7 || g.got.Link.Ephemeral != [32]byte{2} {
		t.Errorf("the link got %+v", g.got.Link)
	}
	if kept := s.config.Link; kept.Secret != [32]byte{} || kept.Ephemeral != [32]byte{} {
		t.Error("the keys are still in the slot")
	}
}

// The host closes the link at each ordinary release: the log warns of other losses only.
func TestReleaseIsNoWarning(t *testing.T) {
	for why, want := range map[string]string{"closed by the peer: detached": "INFO", "closed by the peer: device lost": "WARN", "peer lost": "WARN"} {
		var out bytes.Buffer
		s := &slot{box: &Box{log: slog.New(slog.NewTextHandler(&out, nil))}}
		s.logReport(controller.Action{Verb: controller.Report, State: dxpuv1.BindingState_BINDING_STATE_LOST, Detail: why})
		if !strings.Contains(out.String(), "level="+want) || strings.Contains(out.String(), "released by the host") != (want == "INFO") {
			t.Errorf("%s: %s", why, out.String())
		}
	}
}
