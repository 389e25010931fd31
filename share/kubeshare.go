package share

// VGPU is a shared GPU of KubeShare (Yeh, Chen and Chou, "KubeShare: A Framework to
// Manage GPUs as First-Class and Shared Resources in Container Cloud", HPDC 2020): a
// GPU with an identity that users see, so that two requests can ask for the same one.
type VGPU struct {
	Device Device
	Pods   []SharePod
}

// SharePod is a request for a part of a GPU. Its time is divided by gemini. Labels are
// empty when they are not used.
type SharePod struct {
	Request      PPM    // guaranteed
	Memory       int64  // bytes
	Affinity     string // pods with the same label share a GPU
	AntiAffinity string // pods with the same label never share a GPU
	Exclusion    string // only pods with the same label share a GPU
}

// Free returns the request and memory that the GPU still has.
func (g *VGPU) Free() (PPM, int64) {
	r, m := Whole, g.Device.Memory
	for i := range g.Pods {
		r -= g.Pods[i].Request
		m -= g.Pods[i].Memory
	}
	return r, m
}

// admits reports whether the labels and the size of a pod allow the GPU.
func (g *VGPU) admits(p *SharePod) bool {
	r, m := g.Free()
	if p.Request < 0 || p.Request > r || p.Memory < 0 || p.Memory > m {
		return false
	}
	for i := range g.Pods {
		o := &g.Pods[i]
		if o.Exclusion != p.Exclusion || p.AntiAffinity != "" && o.AntiAffinity == p.AntiAffinity {
			return false
		}
	}
	return true
}

// has reports whether a pod with the affinity label is on the GPU.
func (g *VGPU) has(affinity string) bool {
	for i := range g.Pods {
		if g.Pods[i].Affinity == affinity {
			return true
		}
	}
	return false
}

// PlaceSharePod chooses the GPU for a pod: the one that holds its affinity label; without
// such a GPU or label the fullest one that fits (best fit), and for the first pod of
// an affinity label the emptiest one (worst fit), which leaves room for the others.
func PlaceSharePod(gpus []VGPU, p SharePod) (index int, ok bool) {
	if p.Affinity != "" {
		for i := range gpus {
			if gpus[i].has(p.Affinity) {
				return i, gpus[i].admits(&p)
			}
		}
	}
	index = -1
	var best PPM
	for i := range gpus {
		if !gpus[i].admits(&p) {
			continue
		}
		free, _ := gpus[i].Free()
		if index < 0 || p.Affinity == "" && free < best || p.Affinity != "" && free > best {
			index, best = i, free
		}
	}
	return index, index >= 0
}
