package cli

import (
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"

	"github.com/dxpu-project/dxpu/internal/boxproxy"
)

// FuzzCommandLine parses command lines with one argument per line, and runs nothing.
func FuzzCommandLine(f *testing.F) {
	for _, line := range []string{
		"lease create --count 2 --host h1 --wait", "lease create --count=-1", "get gpus --state free --json", "bench dma --fault loss=1%,delay=50us",
		"manager --spares 1 --heartbeat 250ms --etcd-initial-cluster m1=http://10.0.0.1:2380", "box --name b --gpus 4 --config f --fault x",
		"host --slots 2 --listen 127.0.0.1:0", "model throughput --tags 140 --mrrs 128 --rtt 6.8us", "tlp decode --json", "drain box b1 --deadline 1s",
		"model predict t.json --rtt 6.8us --native-rtt 1.2us", "--version", "help lease", "nothing", "get gpus --state \x00", "lease create --count 99999999999999999999",
		"tenant set a --gpus 4", "sim bandwidth --rtt 1us..20us", "get --manager ,,, pool",
	} {
		f.Add(strings.ReplaceAll(line, " ", "\n"))
	}
	f.Fuzz(func(t *testing.T, line string) {
		if len(line) > 4096 || strings.HasPrefix(line, "__complete") {
			return // completion calls a manager
		}
		root := newRootCommand(&connection{})
		inert(root)
		root.SetArgs(strings.Split(line, "\n"))
		root.SetIn(strings.NewReader(""))
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		var h *hintedError
		if err := root.ExecuteContext(t.Context()); err != nil && (err.Error() == "" || errors.As(err, &h) && h.hint == "") {
			t.Errorf("%q: an empty error: %#v", line, err)
		}
	})
}

// inert removes the actions of commands, so that only arguments are parsed.
func inert(cmd *cobra.Command) {
	if cmd.Runnable() {
		cmd.Run, cmd.RunE = nil, func(*cobra.Command, []string) error { return nil }
	}
	for _, c := range cmd.Commands() {
		inert(c)
	}
}

// FuzzParseBoxFile parses the file of "dxpu box --config".
func FuzzParseBoxFile(f *testing.F) {
	f.Add([]byte("slots:\n  - gpu: {model: V100, vram: 268435456, tags: 140, max_read_request: 128}\n  - vfio_user: /run/nvme.sock\n  - {}\n"))
	f.Add([]byte("slots: []"))
	f.Add([]byte("slots: [{gpus: 1}]"))
	f.Add([]byte("slots: [{gpu: {vram: -1}}]"))
	f.Add([]byte("slots: [{vfio_user: {socket: /run/nvme.sock}, message_dma: true}, {gpu: }]"))
	f.Add([]byte(bomb()))
	f.Fuzz(func(t *testing.T, raw []byte) {
		models := deviceModels(slog.New(slog.DiscardHandler))
		file, err := parseBoxFile(raw, models)
		if err != nil {
			if len(err.Error()) > 2*maxYAMLError {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		if n := len(file.Slots); n < 1 || n > boxproxy.MaxSlots {
			t.Fatalf("%d slots", n)
		}
		out, err := yaml.Dump(file)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := parseBoxFile(out, models); len(out) <= maxBoxFile && (err != nil || len(again.Slots) != len(file.Slots)) {
			t.Errorf("%q is written as %q, which is read as %+v, %v", raw, out, again, err)
		}
	})
}
