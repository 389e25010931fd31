package scenario

import (
	"context"
	"fmt"

	"github.com/dxpu-project/dxpu/internal/model/workload"
	"github.com/dxpu-project/dxpu/share"
)

// Result is one policy on one mix, relative to the clients alone on a whole GPU.
type Result struct {
	Mix         string  `json:"mix"`
	Policy      string  `json:"policy"`
	Source      string  `json:"source"`
	Form        string  `json:"form,omitempty"`
	P99         float64 `json:"online_p99"`   // relative to alone
	Online      float64 `json:"online_jobs"`  // completed jobs, relative to alone
	Offline     float64 `json:"offline_jobs"` // sum over the clients of that, of those that are offline
	Utilisation float64 `json:"utilisation"`  // of the GPU's time
	SMActivity  float64 `json:"sm_activity"`  // multiprocessors in use
	Permits     float64 `json:"permits_per_second"`
	Note        string  `json:"note,omitempty"` // why it is far from the policy's paper
}

// Compare runs all policies, or those named, on the same mixes. With a recorded run,
// each mix's first offline client runs that instead of its program.
func Compare(ctx context.Context, mixes []*Spec, only []string, recorded *workload.Workload) ([]Result, error) {
	if len(only) == 0 {
		for _, p := range share.Policies() {
			only = append(only, p.Name)
		}
	}
	var out []Result
	for _, m := range mixes {
		s := *m
		s.Clients = append([]Client(nil), m.Clients...)
		if recorded != nil {
			s.AddTrace("recorded", recorded)
			for i := range s.Clients {
				if s.Clients[i].Offline {
					s.Clients[i].Program = "trace:recorded"
					break
				}
			}
		}
		r, err := s.compare(ctx, only)
		if err != nil {
			return nil, err
		}
		out = append(out, r...)
	}
	return out, nil
}

func (s *Spec) compare(ctx context.Context, only []string) ([]Result, error) {
	s.Runs = nil
	for _, c := range s.Clients {
		s.Runs = append(s.Runs, Run{Name: "alone-" + c.Name, Policy: "streams", Clients: []string{c.Name}})
	}
	for _, p := range only {
		s.Runs = append(s.Runs, Run{Name: p, Policy: p})
	}
	v, err := s.Measure(ctx)
	if err != nil {
		return nil, err
	}
	var out []Result
	for _, p := range only {
		info, err := share.Find(p)
		if err != nil {
			return nil, err
		}
		out = append(out, s.result(v, info))
	}
	return out, nil
}

// result relates a policy's values to those of the clients alone.
func (s *Spec) result(v Values, info share.Info) Result {
	r := Result{
		Mix: s.Name, Policy: info.Name, Source: info.Source, Form: info.Form,
		Utilisation: v[info.Name+".utilisation"], SMActivity: v[info.Name+".sm-activity"], Permits: v[info.Name+".permits"],
		Note: s.Notes[info.Name],
	}
	online := 0
	for _, c := range s.Clients {
		relative := func(metric string) float64 {
			alone := v[fmt.Sprintf("alone-%s.%s.%s", c.Name, c.Name, metric)]
			if alone == 0 {
				return 0
			}
			return v[fmt.Sprintf("%s.%s.%s", info.Name, c.Name, metric)] / alone
		}
		if c.Offline {
			r.Offline += relative("jobs")
			continue
		}
		online++
		r.P99 = max(r.P99, relative("p99"))
		r.Online += relative("jobs")
	}
	r.Online /= float64(max(1, online))
	return r
}
