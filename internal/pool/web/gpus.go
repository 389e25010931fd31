package web

import (
	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// gpusData is the content of the page of GPUs.
type gpusData struct {
	GPUs    []*dxpuv1.GPU
	Next    string
	Filter  gpuFilter
	States  []string
	Healths []string
	Models  []string
}

type gpuFilter struct{ Model, State, Health, Box, Host string }

func (s *Server) gpusPage(v *view) error {
	v.Name, v.Title, v.Nav = "gpus", "GPUs", "gpus"
	q := v.Query
	d := &gpusData{Filter: gpuFilter{q.Get("model"), q.Get("state"), q.Get("health"), q.Get("box"), q.Get("host")}}
	v.Data = d
	req := &dxpuv1.ListGPUsRequest{Model: d.Filter.Model, BoxId: d.Filter.Box, HostId: d.Filter.Host, PageSize: rowsPerPage, PageToken: q.Get("after")}
	for i := dxpuv1.GPUState_GPU_STATE_FREE; i <= dxpuv1.GPUState_GPU_STATE_SHARED; i++ {
		d.States = append(d.States, word(i))
		if word(i) == d.Filter.State {
			req.State = i
		}
	}
	for i := dxpuv1.Health_HEALTH_OK; i <= dxpuv1.Health_HEALTH_UNREACHABLE; i++ {
		d.Healths = append(d.Healths, word(i))
		if word(i) == d.Filter.Health {
			req.Health = i
		}
	}
	for _, m := range v.Pool.Spares {
		d.Models = append(d.Models, m.Model)
	}
	res, err := ask(v.ctx(), v.api.ListGPUs, req)
	d.GPUs, d.Next = res.GetGpus(), res.GetNextPageToken()
	return err
}

// gpuData is the content of the page of a GPU.
type gpuData struct {
	*dxpuv1.GPU
	Kind kind
	// History is the events about health, errors and replacements.
	History []*dxpuv1.Event
	Events  []*dxpuv1.Event
}

var historyTypes = []dxpuv1.EventType{
	dxpuv1.EventType_EVENT_TYPE_GPU_ADDED, dxpuv1.EventType_EVENT_TYPE_GPU_REMOVED, dxpuv1.EventType_EVENT_TYPE_GPU_HEALTH,
	dxpuv1.EventType_EVENT_TYPE_GPU_ERROR, dxpuv1.EventType_EVENT_TYPE_GPU_RETURNED, dxpuv1.EventType_EVENT_TYPE_GPU_REPLACED,
	dxpuv1.EventType_EVENT_TYPE_CORDONED, dxpuv1.EventType_EVENT_TYPE_UNCORDONED,
}

func (s *Server) gpuPage(v *view) error {
	id := v.r.PathValue("box") + "/" + v.r.PathValue("slot")
	v.Name, v.Title, v.Nav, v.Poll = "gpu", "GPU "+id, "gpus", 2
	res, err := ask(v.ctx(), v.api.GetGPU, &dxpuv1.GetGPURequest{GpuId: id})
	if err != nil {
		return err
	}
	d := &gpuData{GPU: res.GetGpu(), Kind: kindOf(res.GetGpu())}
	v.Data = d
	d.History, err = newestEvents(v, &dxpuv1.EventFilter{GpuId: id, Types: historyTypes}, shownEvents)
	if allowed(err) != nil {
		return err
	}
	d.Events, err = newestEvents(v, &dxpuv1.EventFilter{GpuId: id}, 50)
	return allowed(err)
}
