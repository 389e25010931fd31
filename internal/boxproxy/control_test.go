package boxproxy

import (
	"testing"

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
	if err := s.attach(); err != nil {
		t.Fatal(err)
	}
	if g.got.Link.Binding != 7 || g.got.Link.Ephemeral != [32]byte{2} {
		t.Errorf("the link got %+v", g.got.Link)
	}
	if kept := s.config.Link; kept.Secret != [32]byte{} || kept.Ephemeral != [32]byte{} {
		t.Error("the keys are still in the slot")
	}
}
