package cluster

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// JobDefaults are for lists that do not tell what a job needs beside GPUs: cores and GiB
// for each whole GPU.
type JobDefaults struct{ Cores, MemoryGiB float64 }

// ReadJobs reads a list of jobs as CSV, in one of three forms that it tells apart by the
// names of the columns: that of openb (ReadPods), that of Alibaba's trace of
// disaggregated recommendation services, and the generic one, which also fits lists made
// of Philly's log.
func ReadJobs(r io.Reader, d JobDefaults) ([]Pod, error) {
	in := bufio.NewReaderSize(r, maxHeader)
	head, err := in.Peek(maxHeader)
	if err != nil && len(head) == 0 {
		return nil, fmt.Errorf("cluster: pods: no header line: %w", err)
	}
	line, _, _ := strings.Cut(strings.ToLower(strings.TrimLeft(string(head), "\ufeff\r\n")), "\n")
	switch {
	case strings.Contains(line, "gpu_milli"):
		return ReadPods(in)
	case strings.Contains(line, "instance_sn"):
		return readInstances(in)
	}
	return readGeneric(in, d)
}

// maxHeader bounds the line with the names of the columns.
const maxHeader = 4096

// readInstances reads the trace of disaggregated recommendation services
// (cluster-trace-gpu-v2025): cores, GiB and whole GPUs; an instance without a creation time
// was there before, one without a deletion time stays.
func readInstances(r io.Reader) ([]Pod, error) {
	t, err := openTable(r, "instances", []column{
		{[]string{"instance_sn"}, required},
		{[]string{"cpu_request"}, filled},
		{[]string{"memory_request"}, filled},
		{[]string{"gpu_request"}, filled},
		{[]string{"creation_time"}, required},
		{[]string{"deletion_time"}, required},
	})
	if err != nil {
		return nil, err
	}
	return readRows(t, t.instance)
}

// instance reads a row of that trace.
func (t *table) instance() (p Pod, err error) {
	if p.Name, err = t.name(0); err != nil {
		return p, err
	}
	var cores, memory float64
	if err := t.amounts(number[float64]{1, &cores}, number[float64]{2, &memory}); err != nil {
		return p, err
	}
	if err := t.numbers(number[int64]{4, &p.Created}, number[int64]{5, &p.Deleted}); err != nil {
		return p, err
	}
	p.MilliCPU, p.MemoryMiB = int64(math.Round(cores*1000)), int64(math.Round(memory*1024))
	if p.GPUs, err = t.count(3); p.GPUs > 0 {
		p.MilliGPU = Milli
	}
	return p, err
}

// Columns of the generic list.
const (
	colName = iota
	colGPUs
	colSubmit
	colStart
	colDuration
	colEnd
	colCores
	colMemory
	colModels
	colProfile
)

var genericColumns = []column{
	colName:     {[]string{"job", "job_id", "jobid", "id", "name"}, required},
	colGPUs:     {[]string{"gpus", "num_gpus", "num_gpu", "gpu_num", "gpu"}, filled},
	colSubmit:   {[]string{"submit", "submit_time", "submitted_time", "arrival_time", "timestamp"}, optional},
	colStart:    {[]string{"start", "start_time", "started_time"}, optional},
	colDuration: {[]string{"duration", "run_time", "runtime", "duration_s"}, optional},
	colEnd:      {[]string{"end", "end_time", "finished_time"}, optional},
	colCores:    {[]string{"cores", "cpus", "num_cpus", "cpu_num", "cpu"}, optional},
	colMemory:   {[]string{"memory_gib", "mem_gib", "memory"}, optional},
	colModels:   {[]string{"models", "gpu_type", "model"}, optional},
	colProfile:  {[]string{"profile", "model_name"}, optional},
}

// wholeHost is the number of GPUs of each copy of a job that needs more than one host has.
const wholeHost = 8

// readGeneric reads one job a line. GPUs may be a part of one. A job for more than MaxGPUs
// runs on several hosts with 8 GPUs each.
func readGeneric(r io.Reader, d JobDefaults) ([]Pod, error) {
	t, err := openTable(r, "jobs", genericColumns)
	if err != nil {
		return nil, err
	}
	return readRows(t, func() (Pod, error) { return t.job(d) })
}

// job reads a row of the generic list.
func (t *table) job(d JobDefaults) (p Pod, err error) {
	if p.Name, err = t.name(colName); err != nil {
		return p, err
	}
	if p.Models, err = t.models(colModels); err != nil {
		return p, err
	}
	if p.Profile, err = t.word(colProfile); err != nil {
		return p, err
	}
	var gpus, cores, memory float64
	if err := t.amounts(number[float64]{colGPUs, &gpus}, number[float64]{colCores, &cores}, number[float64]{colMemory, &memory}); err != nil {
		return p, err
	}
	if err := t.splitGPUs(&p, gpus); err != nil {
		return p, err
	}
	if cores == 0 {
		cores = d.Cores * gpus
	}
	if memory == 0 {
		memory = d.MemoryGiB * gpus
	}
	copies := float64(p.copies())
	p.MilliCPU, p.MemoryMiB = int64(math.Round(cores*1000/copies)), int64(math.Round(memory*1024/copies))
	return p, t.life(&p)
}

// life sets when a job came and when it would go if it started at once. The time for which
// it waited in the recorded cluster, from its submission to its start, is not its own.
func (t *table) life(p *Pod) error {
	var duration float64
	if err := t.amounts(number[float64]{colDuration, &duration}); err != nil {
		return err
	}
	var at [3]int64 // submission, start and end
	for i, column := range []int{colSubmit, colStart, colEnd} {
		var err error
		if at[i], err = t.time(column); err != nil {
			return err
		}
	}
	submit, start, end := at[0], at[1], at[2]
	switch {
	case t.text(colSubmit) == "":
		submit = start
	case start > 0 && start < submit:
		return t.wrong("started at %d s, before its submission at %d s", start, submit)
	case start > 0 && end > 0:
		if end < start {
			return t.wrong("ended at %d s, before its start at %d s", end, start)
		}
		end = submit + max(end-start, 1)
	case end > 0 && end == submit:
		end++ // a job takes at least a second
	}
	// A job with a duration of 0 was short; one without a duration stays.
	if p.Created, p.Deleted = submit, end; duration > 0 || end == 0 && t.text(colDuration) != "" {
		p.Deleted = submit + max(int64(math.Round(duration)), 1)
	}
	return nil
}

// splitGPUs sets what a job needs on each host.
func (t *table) splitGPUs(p *Pod, gpus float64) error {
	whole := math.Trunc(gpus)
	switch {
	case gpus == 0:
	case gpus < 1:
		p.GPUs, p.MilliGPU = 1, max(int64(math.Round(gpus*Milli)), 1)
	case whole != gpus || gpus > wholeHost*maxCopies:
		return t.wrong("%v GPUs: want a part of one, or a whole number up to %d", gpus, wholeHost*maxCopies)
	case gpus > MaxGPUs:
		p.GPUs, p.MilliGPU, p.Copies = wholeHost, Milli, (int(whole)+wholeHost-1)/wholeHost
	default:
		p.GPUs, p.MilliGPU = int(whole), Milli
	}
	return nil
}

// readRows reads all rows by a function for one.
func readRows(t *table, one func() (Pod, error)) ([]Pod, error) {
	var out []Pod
	for {
		ok, err := t.next(len(out))
		if err != nil {
			return nil, err
		}
		if !ok {
			return out, checkPods(out)
		}
		p, err := one()
		if err != nil {
			return nil, err
		}
		if err := p.check(); err != nil {
			return nil, t.wrong("%w", err)
		}
		out = append(out, p)
	}
}

// Forms of times, besides seconds.
var timeForms = []string{time.RFC3339, "2006-01-02 15:04:05", "2006-01-02T15:04:05", "2006-01-02 15:04"}

// time returns a column as seconds; an empty one, "none" and "null" are 0.
func (t *table) time(i int) (int64, error) {
	s := t.text(i)
	switch strings.ToLower(s) {
	case "", "none", "null", "nan":
		return 0, nil
	}
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		f, err := t.amount(i)
		return int64(math.Round(f)), err
	}
	for _, form := range timeForms {
		if at, err := time.Parse(form, s); err == nil && at.Unix() >= 0 && at.Unix() < maxNumber {
			return at.Unix(), nil
		}
	}
	return 0, t.wrong("%s %q: want seconds or a time such as 2017-10-07 02:24:50", t.cols[i].names[0], clip(s))
}
