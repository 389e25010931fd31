package cluster

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
)

// A field that is set to zero is zero, and refused where zero makes no sense. Only one that
// is left out has its default.
func TestZeroIsNotTheDefault(t *testing.T) {
	const rest = "nodes: nodes.csv\npods: pods.csv\npolicies: [fgd]\n"
	e, err := load(t, rest+"experiment: churn\nwarm-up-lives: 0\ncores-per-gpu: 0\nmemory-gib-per-gpu: 0\n")
	if err != nil {
		t.Fatal(err)
	}
	if e.WarmUp != 0 || e.CoresPerGPU != 0 || e.MemoryPerGPU != 0 || e.Lives != 6 || e.Life != 1 || e.Demand != 1.3 || e.Seeds != 5 {
		t.Errorf("%+v", e.Scenario)
	}
	const failing = "experiment: failures\nservers: [{count: 1, gpus: 8}]\nfailures: {rates: {gpu: 1}%s}\n"
	e, err = load(t, fmt.Sprintf(failing, ", repair: {median-days: 2}"))
	if err != nil || e.Failures.Years != 50 || e.Failures.Repair != (Repair{MedianDays: 2, MeanDays: 5.5}) {
		t.Errorf("%v, %+v", err, e)
	}
	for text, want := range map[string]string{
		rest + "demand: 0\n":                             "demand 0: want 0.1 to 4",
		rest + "seeds: 0\n":                              "seeds 0: want 1 to 1000",
		rest + "life-hours: 0\n":                         "life-hours 0",
		rest + "lives: 0\n":                              "lives 0",
		rest + "speed-up: 0\n":                           "speed-up 0",
		fmt.Sprintf(failing, ", years: 0"):               "years 0: want 1",
		fmt.Sprintf(failing, ", repair: {mean-days: 0}"): "mean-days 0",
		"servers: [{count: 1, gpus: 8}]\nrequests: [{weight: 1, gpus: 1}]\npools: [{name: p}]\nexperiment: size\nsize: {gpus: 8, accepted: 0}\n": "accepted 0",
	} {
		if _, err := load(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// An error names the field and what to do.
func TestErrorsOfScenariosNameTheField(t *testing.T) {
	const rest = "servers: [{count: 1, cores: 9, memory-gib: 9, gpus: 8}]\nrequests: [{weight: 1, gpus: 1}]\n"
	const prices = rest + "experiment: churn\npools: [{name: p}]\nperformance: {rtt: 6.8us, profiles: [{name: a, step-ms: 1%s}], prices: {%s}}\n"
	for text, want := range map[string]string{
		fmt.Sprintf(prices, "", "box-hour: -1"):                                                            "performance: prices: box-hour -1: want 0 to",
		fmt.Sprintf(prices, ", memsets: .inf", ""):                                                         "performance: profile a: memsets +Inf: want 0 to",
		"experiment: failures\nservers: [{count: 1, gpus: 8}]\nfailures: {rates: {proxy: 1e30}}\n":         "failures: rates: proxy 1e+30: want 0 to 1000 a year",
		"experiment: failures\nservers: [{count: 1, gpus: 8}]\nfailures: {faults: none.json}\n":            "failures: faults: none.json: no such file: give the folder of the lists with --data",
		rest + "policies: [fgd, random, fgd]\n":                                                            "policy fgd: it is there twice",
		rest + "pools: [{name: p}, {name: p}]\n":                                                           "pool p: another pool or policy has this name",
		rest + "policies: [fgd]\npools: [{name: fgd}]\n":                                                   "pool fgd: another pool or policy has this name",
		rest + "pools: [{name: " + strings.Repeat("x", 81) + "}]\n":                                        "the name has 81 bytes: want at most 80",
		"nodes: /etc/passwd\npods: pods.csv\npolicies: [fgd]\n":                                            `nodes: "/etc/passwd": want a file in the folder of the lists`,
		"nodes: nodes.csv\npods: no.csv\npolicies: [fgd]\n":                                                "pods: no.csv: no such file: give the folder",
		"nodes: .\npods: pods.csv\npolicies: [fgd]\n":                                                      "nodes: .: it is a folder",
		"servers: [{count: 1, gpus: 8}]\nrequests: [{weight: 1, gpus: 1, cores: 1e20}]\npolicies: [fgd]\n": "want 0 to 16 GPUs, and 0 to 1048576 cores and GiB",
	} {
		if _, err := load(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// Parts of a GPU are rounded to thousandths, not cut.
func TestPartsAreRounded(t *testing.T) {
	e, err := load(t, "servers: [{count: 1, cores: 9, memory-gib: 9, gpus: 8}]\nrequests: [{weight: 1, gpus: 0.565, cores: 1.001}, {weight: 1, gpus: 0.0001}]\npolicies: [fgd]\n")
	if err != nil {
		t.Fatal(err)
	}
	if e.Pods[0].MilliGPU != 565 || e.Pods[0].MilliCPU != 1001 || e.Pods[1].MilliGPU != 1 {
		t.Errorf("%+v", e.Pods)
	}
}

// An error in a list names its file, whose line it tells.
func TestErrorsInListsNameTheFile(t *testing.T) {
	const nodes, pods = "sn,cpu_milli,memory_mib,gpu,model\na,9000,9000,8,T4\n", "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,1000\n"
	for want, lists := range map[string][2]string{
		"broken-nodes.csv: cluster: nodes, line 2:": {strings.Replace(nodes, "9000", "many", 1), pods},
		"broken-pods.csv: cluster: pods, line 2:":   {nodes, strings.Replace(pods, "1000", "1500", 1)},
	} {
		data := fstest.MapFS{
			"s.yaml":           {Data: []byte("nodes: broken-nodes.csv\npods: broken-pods.csv\npolicies: [fgd]\n")},
			"broken-nodes.csv": {Data: []byte(lists[0])}, "broken-pods.csv": {Data: []byte(lists[1])},
		}
		if _, err := Load(data, "s.yaml", data); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
