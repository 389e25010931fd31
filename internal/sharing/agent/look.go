//go:build linux

package agent

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/internal/pool/gpuerr"
	"github.com/dxpu-project/dxpu/internal/sharing/broker"
)

// A GPU may leave while the agent runs (it is unplugged, or its driver is unbound), and one that is
// missing may come back. The agent looks for its GPUs, and believes what several looks in a row
// have found. Each time that a GPU leaves counts as an error of it (gpuerr.DeviceFailed), so one
// that comes and goes stays out of service for a while.

const (
	lookPause = 5 * time.Second
	// steady is the number of looks that must agree.
	steady = 3
)

// looks reports whether the agent looks for its GPUs.
func (a *Agent) looks() bool { return a.config.Look != nil && a.config.MPS == nil }

// watchGPUs looks for the GPUs until the context ends.
func (a *Agent) watchGPUs(ctx context.Context) error {
	if !a.looks() {
		return nil
	}
	tick := time.NewTicker(cmp.Or(a.config.Pause, lookPause))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		list, missing, err := a.config.Look(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			a.config.Log.Warn("agent cannot look for its GPUs, and takes none as missing by that", "error", err)
			continue
		}
		a.enter()
		a.lookLocked(list, missing)
		a.flushLocked()
		a.mu.Unlock()
	}
}

// GPUs returns the GPUs that the agent has, and those that are missing as long as an operator is to
// see them.
func (a *Agent) GPUs() []broker.GPU {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []broker.GPU
	for i, g := range a.config.Broker.GPUs {
		if a.visibleLocked(i) {
			out = append(out, g)
		}
	}
	return out
}

// visibleLocked reports whether an operator is to see a GPU: one of a former start that is missing
// matters to its shares only, and goes with the last of them.
func (a *Agent) visibleLocked(gpu int) bool {
	p := a.patients[gpu]
	return p.missing == "" || p.known || len(a.sharesOfLocked(a.config.Broker.GPUs[gpu].Name)) > 0
}

// count returns the number of GPUs, with those that are missing. It never falls.
func (a *Agent) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.patients)
}

// lookLocked takes what a look has found.
func (a *Agent) lookLocked(list []broker.GPU, missing map[string]string) {
	a.config.Missing = missing
	found := a.matchLocked(list)
	for i, p := range a.patients {
		g, k := &a.config.Broker.GPUs[i], found[i]
		here := k >= 0 && (p.missing != "" || list[k].Name == g.Name)
		if p.resetting { // the driver may not list it meanwhile
			p.looks = 0
			continue
		}
		if here && p.missing == "" {
			a.identifyLocked(i, &list[k])
		}
		if p.missing != "" && !here {
			p.missing = cmp.Or(missing[g.Name], a.noGPU())
		}
		if here == (p.missing == "") {
			p.looks = 0
			continue
		}
		if p.looks++; p.looks < steady {
			continue
		}
		p.looks = 0
		if here {
			a.returnLocked(i, list[k])
		} else {
			a.loseLocked(i, cmp.Or(missing[g.Name], a.noGPU()))
		}
	}
	a.meetLocked(list, found)
}

// identifyLocked takes the UUID of a GPU that had none at the start: the driver was not ready.
func (a *Agent) identifyLocked(i int, found *broker.GPU) {
	g := &a.config.Broker.GPUs[i]
	if g.UUID != [16]byte{} || found.UUID == [16]byte{} {
		return
	}
	g.UUID = found.UUID
	a.broker.Identify(i, found.UUID)
	a.config.Log.Info("UUID of a GPU is known now", "gpu", g.Name, "uuid", UUIDText(g.UUID))
	signal(a.changed)
	signal(a.save)
}

// matchLocked returns where each GPU is in a list, -1 for those that are not there: by their UUIDs,
// and by their names where one is not known.
func (a *Agent) matchLocked(list []broker.GPU) []int {
	found := slices.Repeat([]int{-1}, len(a.patients))
	for _, same := range []func(g *broker.GPU, uuid string, x *broker.GPU) bool{
		func(_ *broker.GPU, uuid string, x *broker.GPU) bool { return uuid != "" && uuid == UUIDText(x.UUID) },
		func(g *broker.GPU, uuid string, x *broker.GPU) bool {
			return g.Name == x.Name && (uuid == "" || x.UUID == [16]byte{})
		},
	} {
		for i := range found {
			g := &a.config.Broker.GPUs[i]
			uuid := cmp.Or(UUIDText(g.UUID), a.uuids[g.Name])
			for k := range list {
				if found[i] < 0 && !slices.Contains(found, k) && same(g, uuid, &list[k]) {
					found[i] = k
				}
			}
		}
	}
	return found
}

// loseLocked takes a GPU out of service that is not there any more.
func (a *Agent) loseLocked(i int, why string) {
	p := a.patients[i]
	p.missing, p.address = why, "" // errors at its address may be those of another GPU
	p.Report(time.Now(), gpuerr.DeviceFailed, 1)
	a.stopLocked(i)
	signal(a.changed)
	signal(a.save)
}

// returnLocked gives a GPU that is back to its shares.
func (a *Agent) returnLocked(i int, g broker.GPU) {
	p, old := a.patients[i], a.config.Broker.GPUs[i]
	if g.UUID == [16]byte{} {
		g.UUID = old.UUID
	}
	if !a.vacateLocked(i, g.Name) {
		return
	}
	if err := a.broker.Replace(i, g); err != nil {
		if why := "it is back, and not as it was: " + err.Error() + ": restart the agent"; why != p.missing {
			p.missing = why
			a.config.Log.Error("GPU is still missing", "gpu", old.Name, "why", why)
		}
		return
	}
	a.renameLocked(i, g.Name)
	a.config.Broker.GPUs[i] = g
	p.missing, p.address, p.known = "", addressOf(&g), true
	service, class := p.Service(time.Now())
	if service == gpuerr.InService {
		a.broker.Start(i)
	} else {
		a.broker.Stop(a.now(), i, class.String(), defaultGrace)
	}
	a.config.Log.Info("GPU is back", "gpu", g.Name, "uuid", UUIDText(g.UUID), "state", service.String(), "shares", a.sharesOfLocked(g.Name))
	signal(a.changed)
	signal(a.save)
}

// meetLocked adds the GPUs of a list that the agent does not know.
func (a *Agent) meetLocked(list []broker.GPU, found []int) {
	before := a.strangers
	a.strangers = map[string]int{}
	for k := range list {
		g := list[k]
		if slices.Contains(found, k) {
			continue
		}
		n := before[g.Name] + 1
		if n < steady || !a.vacateLocked(-1, g.Name) {
			a.strangers[g.Name] = n
			continue
		}
		if err := a.broker.AddGPU(g); err != nil {
			a.config.Log.Error("GPU is not shared", "gpu", g.Name, "error", err)
			continue
		}
		a.config.Broker.GPUs = append(slices.Clip(a.config.Broker.GPUs), g)
		a.patients = append(a.patients, newPatient(&a.config, &g))
		a.places = assignPlaces(a.places, a.config.Broker.GPUs)
		a.config.Log.Info("GPU is shared", "gpu", g.Name, "model", g.Model, "memory", g.Device.Memory, "multiprocessors", g.Device.SMs)
		signal(a.changed)
		signal(a.save)
	}
}

// vacateLocked gives another name to a GPU that is missing and has the name of one that is here. It
// returns false if one that counts as here has it.
func (a *Agent) vacateLocked(except int, name string) bool {
	i := indexOf(a.config.Broker.GPUs, name)
	switch {
	case i < 0 || i == except:
		return true
	case a.patients[i].missing == "":
		return false
	}
	to := cmp.Or(UUIDText(a.config.Broker.GPUs[i].UUID), a.uuids[name], name+"-former")
	for indexOf(a.config.Broker.GPUs, to) >= 0 {
		to += "-former"
	}
	a.renameLocked(i, to)
	return true
}

// renameLocked gives a GPU another name, wherever the old one is.
func (a *Agent) renameLocked(i int, to string) {
	g := &a.config.Broker.GPUs[i]
	from := g.Name
	if from == to {
		return
	}
	for _, s := range a.shares {
		s.record.Parts, s.record.Page = slices.Clone(s.record.Parts), slices.Clone(s.record.Page)
		for k := range s.record.Parts {
			if p := &s.record.Parts[k]; p.GPU == from {
				p.GPU = to
			}
		}
		for k, name := range s.record.Page {
			if name == from {
				s.record.Page[k] = to
			}
		}
	}
	a.places = maps.Clone(a.places)
	rename(a.places, from, to)
	rename(a.uuids, from, to)
	g.Name = to
	a.broker.Rename(i, to)
}

// rename gives an entry of a map another name.
func rename[V any](m map[string]V, from, to string) {
	v, ok := m[from]
	delete(m, from)
	delete(m, to)
	if ok {
		m[to] = v
	}
}
