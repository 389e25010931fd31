//go:build linux

package agent

import (
	"cmp"
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/gpus"
	"github.com/dxpu-project/dxpu/share"
)

// A GPU of a share may be missing at a start of the agent: the driver has lost it, or --gpu does
// not name it. The broker has such a GPU too, out of service, with the memory that its shares
// have: so a share keeps its part of it, the places of its other GPUs, its owner and its lease,
// and ends as any other one. An agent that finds the GPU gives it back, at its start or by a look
// (look.go).
//
// A GPU is known by its UUID, wherever it is. Where no agent has known that yet, by its name,
// which is its PCI address.

// knownGPU is a GPU as the state file has it.
type knownGPU struct {
	UUID   string `json:"uuid,omitempty"`
	Model  string `json:"model,omitempty"`
	Memory int64  `json:"memory_bytes"`
	SMs    int32  `json:"multiprocessors"`
}

// broker returns the GPU as the broker has it, while it is missing.
func (k knownGPU) broker(name string, least int64) broker.GPU {
	g := broker.GPU{Name: name, Model: k.Model, Device: share.Device{SMs: k.SMs, ThreadsPerSM: 2048, Memory: max(k.Memory, least, 1)}}
	if g.Device.Validate() != nil { // of a file of an earlier version, or of a damaged one
		g.Device = share.Device{SMs: 1, ThreadsPerSM: 2048, Memory: max(least, 1)}
	}
	if at, err := gpus.ParseAddress(name); err == nil {
		g.Domain, g.Address = at.Domain, at.Function
	}
	g.UUID, _ = gpus.ParseUUID(k.UUID)
	return g
}

// names returns the names of all GPUs that the file speaks of.
func (f *file) names() []string {
	all := map[string]bool{}
	for i := range f.Shares {
		for _, name := range f.Shares[i].page() {
			all[name] = true
		}
	}
	for name := range f.GPUs {
		all[name] = true
	}
	for name := range f.Health {
		all[name] = true
	}
	for name := range f.Places {
		all[name] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// recognise gives the GPUs of the file the names that they have now. A GPU that has been replaced
// by another one at its address gets a name of its own.
func (f *file) recognise(here []broker.GPU) {
	names, now, taken := f.names(), map[string]string{}, map[string]bool{}
	for _, name := range names {
		if i := slices.IndexFunc(here, func(g broker.GPU) bool { return g.UUID != [16]byte{} && UUIDText(g.UUID) == f.GPUs[name].UUID }); i >= 0 && !taken[here[i].Name] {
			now[name], taken[here[i].Name] = here[i].Name, true
		}
	}
	for _, name := range names {
		if now[name] == "" && !taken[name] && f.same(name, here) {
			now[name], taken[name] = name, true
		}
	}
	for _, name := range names {
		if now[name] != "" {
			continue
		}
		to := cmp.Or(f.GPUs[name].UUID, name+"-former")
		for taken[to] {
			to += "-former"
		}
		now[name], taken[to] = to, true
	}
	f.rename(now)
}

// same reports whether the GPU with a name, if there is one, may be the file's.
func (f *file) same(name string, here []broker.GPU) bool {
	i := indexOf(here, name)
	return i < 0 || here[i].UUID == [16]byte{} || f.GPUs[name].UUID == ""
}

func (f *file) rename(now map[string]string) {
	for i := range f.Shares {
		for k := range f.Shares[i].Parts {
			p := &f.Shares[i].Parts[k]
			p.GPU = now[p.GPU]
		}
		for k, name := range f.Shares[i].Page {
			f.Shares[i].Page[k] = now[name]
		}
	}
	f.GPUs, f.Health, f.Places = renamed(f.GPUs, now), renamed(f.Health, now), renamed(f.Places, now)
}

func renamed[V any](m map[string]V, now map[string]string) map[string]V {
	out := map[string]V{}
	for name, v := range m {
		out[now[name]] = v
	}
	return out
}

// missing returns the GPUs that shares of the file have and that are not here.
func (f *file) missing(here []broker.GPU) []broker.GPU {
	memory := map[string]int64{}
	for i := range f.Shares {
		for _, name := range f.Shares[i].page() {
			if indexOf(here, name) >= 0 {
				continue
			}
			var n int64 // zero: the page only keeps its place
			if p := f.Shares[i].part(name); p != nil {
				n = max(p.Memory, p.Kept, 0)
			}
			memory[name] = min(memory[name]+n, 1<<50)
		}
	}
	var out []broker.GPU
	for _, name := range slices.Sorted(maps.Keys(memory)) {
		out = append(out, f.GPUs[name].broker(name, memory[name]))
	}
	return out
}

// recognise finds the GPUs of the file, and adds those that are missing behind the others.
func (a *Agent) recognise(f *file) error {
	f.recognise(a.config.Broker.GPUs)
	a.uuids = map[string]string{}
	for name, g := range f.GPUs {
		a.uuids[name] = g.UUID
	}
	for _, g := range f.missing(a.config.Broker.GPUs) {
		if err := a.broker.AddGPU(g); err != nil {
			return err
		}
		a.config.Broker.GPUs = append(slices.Clip(a.config.Broker.GPUs), g)
		_, known := a.config.Missing[g.Name]
		p := newPatient(&a.config, &g)
		p.address, p.missing, p.known = "", cmp.Or(a.config.Missing[g.Name], a.noGPU()), known
		a.patients = append(a.patients, p)
	}
	return nil
}

// noGPU says why a GPU is missing that nothing else is known of.
func (a *Agent) noGPU() string {
	how, end := "bring it back", `its shares by "dxpu share end"`
	if !a.looks() {
		how = "bring it back, and restart the agent"
	}
	if a.config.Pool != "" {
		end = `its leases by "dxpu lease delete"`
	}
	return "it is not there: " + how + ", or end " + end
}

// reopenLocked opens a share of the file. It fails where a later start may have more luck: the file
// stays as it is, and the memory of the share is not given out again.
func (a *Agent) reopenLocked(f *file, r *Record) error {
	fits := f.fit(r, a.config.Broker.GPUs, cmp.Or(a.config.Broker.OverCommit, 100))
	if err := a.openLocked(&fits, true); isShortage(err) {
		return fmt.Errorf("share %q of %s cannot be opened: %w: make room, and start the agent again", r.ID, a.config.State, err)
	} else if err != nil {
		a.config.Log.Error("share of the state file is lost", "share", r.ID, "file", a.config.State, "error", err)
		return nil
	}
	a.shares[r.ID].record = *r
	if r.Ending != nil { // programs that come back have the whole time again
		if err := a.broker.End(a.now(), r.ID, min(max(*r.Ending, 0), maxGrace)); err != nil {
			a.config.Log.Error("share does not end", "share", r.ID, "error", err)
		}
	}
	for i := range r.Parts {
		if why := r.Parts[i].short(fits.Parts[i].Memory); why != "" {
			a.config.Log.Error("share has less memory than it was given", "share", r.ID, "why", why)
		}
	}
	return nil
}

// stopMissingLocked takes the GPUs that are missing out of service, and tells which shares wait.
func (a *Agent) stopMissingLocked() {
	for gpu, p := range a.patients {
		if p.missing != "" {
			a.stopLocked(gpu)
		}
	}
}

// stopLocked takes a GPU that is missing out of service.
func (a *Agent) stopLocked(gpu int) {
	g, why := &a.config.Broker.GPUs[gpu], a.patients[gpu].missing
	a.broker.Stop(a.now(), gpu, "GPU "+g.Name+" is missing: "+why, defaultGrace)
	shares := a.sharesOfLocked(g.Name)
	if len(shares) == 0 && !a.patients[gpu].known { // only its place in their pages is kept
		return
	}
	a.config.Log.Error("GPU is missing, and its shares wait for it", "gpu", g.Name, "uuid", cmp.Or(UUIDText(g.UUID), a.uuids[g.Name]), "shares", shares, "why", why)
}

// sharesOfLocked returns the names of the shares that have a part of a GPU.
func (a *Agent) sharesOfLocked(gpu string) []string {
	var out []string
	for id, s := range a.shares {
		if s.record.part(gpu) != nil {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// knownLocked returns what the state file has of the GPUs. A GPU that no program has opened since
// the driver started has no UUID yet: it has that of before.
func (a *Agent) knownLocked() map[string]knownGPU {
	out := map[string]knownGPU{}
	for i := range a.config.Broker.GPUs {
		g := &a.config.Broker.GPUs[i]
		out[g.Name] = knownGPU{UUID: cmp.Or(UUIDText(g.UUID), a.uuids[g.Name]), Model: g.Model, Memory: g.Device.Memory, SMs: g.Device.SMs}
	}
	return out
}

// fit returns a share as its GPUs have room for it: one that has less memory than its shares, such
// as after another setting of ECC, divides that between them. The record keeps what was given.
func (f *file) fit(r *Record, list []broker.GPU, percent int) Record {
	out := *r
	out.Parts = slices.Clone(r.Parts)
	for i := range out.Parts {
		p := &out.Parts[i]
		g := indexOf(list, p.GPU)
		if g < 0 {
			continue
		}
		var all uint64
		for k := range f.Shares {
			if q := f.Shares[k].part(p.GPU); q != nil {
				all = min(all+min(uint64(max(q.Memory, q.Kept, 0)), 1<<50), 1<<62)
			}
		}
		room := uint64(list[g].Device.Memory) * uint64(percent) / 100
		if all <= room || p.Memory <= 0 {
			continue
		}
		high, low := bits.Mul64(min(uint64(p.Memory), 1<<50), room)
		n, _ := bits.Div64(high, low, all)
		p.Memory, p.Kept = int64(n), 0
	}
	return out
}

// short returns what the GPU of a part lacks of the memory that the part was given.
func (p *RecordPart) short(memory int64) string {
	if memory >= p.Memory {
		return ""
	}
	return fmt.Sprintf("GPU %s has less memory than its shares were given: this one has %d of %d bytes until there is more, or it is resized", p.GPU, memory, p.Memory)
}
