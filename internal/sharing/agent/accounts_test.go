//go:build linux

package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// serveUntilKilled is the program of TestKilledAgentForgivesNothing.
func serveUntilKilled(dir string) {
	a, err := agent.New(configOf(dir, os.Getenv("SHARE_TEST_POLICY")))
	if err == nil {
		err = a.Run(context.Background())
	}
	fmt.Println(err)
	os.Exit(1)
}

// launch asks for a launch, and waits for its permit.
func (m *machine) launch(c *client, id uint64) {
	m.t.Helper()
	if err := c.send(wire.Message{Type: wire.Launch, ID: id, Arg: [wire.Args]uint64{80, 256, 1, 7}}); err != nil {
		m.t.Fatal(err)
	}
	for {
		got, err := c.receive()
		if err != nil {
			m.t.Fatal(err)
		}
		if got.Type == wire.Permit && got.ID == id {
			return
		}
	}
}

// written returns what the shares of an agent owe by its file.
func written(dir string) (owed time.Duration) {
	var file struct {
		Shares []struct {
			Owed time.Duration `json:"owed_ns"`
		} `json:"shares"`
	}
	text, err := os.ReadFile(filepath.Join(dir, "run", "accounts.json"))
	if err != nil || json.Unmarshal(text, &file) != nil {
		return 0
	}
	for _, s := range file.Shares {
		owed += s.Owed
	}
	return owed
}

// A program with a limit of 10 % that has used a second and a half waits for as long after the
// agent was killed as before: the next agent knows what it has used.
func TestKilledAgentForgivesNothing(t *testing.T) {
	for _, policy := range []string{"gemini", "gaiapi"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp("", "share")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			first := exec.Command(os.Args[0])
			first.Env = append(os.Environ(), "SHARE_TEST_AGENT="+dir, "SHARE_TEST_POLICY="+policy)
			first.Stdout = os.Stderr
			if err := first.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _, _ = first.Process.Kill(), first.Wait() })
			m := &machine{t: t, dir: dir, api: agent.NewClient(filepath.Join(dir, "run"))}
			m.until("the agent serves", func() bool { _, err := m.api.GPUs(t.Context()); return err == nil })
			tenth := int64(100_000)
			s := m.create(agent.Part{Memory: gib, Compute: &tenth})
			c := m.connect(s)
			m.launch(c, 1)
			from := time.Now()
			<-time.After(1500 * time.Millisecond) // the kernel
			ran := time.Since(from)
			if err := c.send(wire.Message{Type: wire.Done, ID: 1, Arg: [wire.Args]uint64{uint64(ran)}}); err != nil {
				t.Fatal(err)
			}
			m.until("the account is written", func() bool { return written(dir) > ran/2 })
			ended := time.Now()
			if err := first.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = first.Wait()
			m = start(t, dir, policy)
			c = m.connect(s)
			m.launch(c, 2)
			if waited := time.Since(ended); waited < 6*time.Second {
				t.Errorf("after %v of the GPU, and the death of the agent, the next launch waited for %v", ran, waited)
			}
		})
	}
}

// A file that is damaged, or of another boot, keeps no agent from its start.
func TestDamagedAccounts(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "cut": `{"version":1,"sha`, "other": `{"version":9}`, "of another boot": `{"version":1,"boot":"x","at_ns":1,"shares":[{"share":"a","gpu":"gpu0","owed_ns":99999999999}]}`,
		"wrong": `{"version":1,"boot":"` + bootID(t) + `","at_ns":-9223372036854775808,"shares":[{"share":"a","gpu":"GPU-01000000-0000-0000-0000-000000000002","owed_ns":-1,"used_ns":[-5,9223372036854775807]},{"share":"b"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			m := start(t, "", "gemini")
			tenth := int64(100_000)
			m.create(agent.Part{ID: "a", Memory: gib, Compute: &tenth})
			m.stop()
			if err := os.WriteFile(filepath.Join(m.dir, "run", "accounts.json"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			m = start(t, m.dir, "gemini")
			m.launch(m.connect(m.shares()[0]), 1)
		})
	}
}

func bootID(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	return string(text[:len(text)-1])
}

// A share is not charged for what a former one with its name has used, whose account is in the file
// of an agent that was killed at once.
func TestAccountOfAFormerShare(t *testing.T) {
	m := start(t, "", "gemini")
	tenth := int64(100_000)
	part := agent.Part{ID: "web", Memory: gib, Compute: &tenth}
	c := m.connect(m.create(part))
	m.launch(c, 1)
	from := time.Now()
	<-time.After(1500 * time.Millisecond) // the kernel
	if err := c.send(wire.Message{Type: wire.Done, ID: 1, Arg: [wire.Args]uint64{uint64(time.Since(from))}}); err != nil {
		t.Fatal(err)
	}
	m.until("the account is written", func() bool { return written(m.dir) > 0 })
	file := filepath.Join(m.dir, "run", "accounts.json")
	former, err := os.ReadFile(file)
	if err == nil {
		err = m.api.End(t.Context(), "web", time.Hour)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = c.socket.Close()
	m.until("the share has ended", func() bool { return len(m.shares()) == 0 })
	m.create(part)
	m.stop()
	if err := os.WriteFile(file, former, 0o600); err != nil {
		t.Fatal(err)
	}
	m = start(t, m.dir, "gemini")
	from = time.Now()
	m.launch(m.connect(m.shares()[0]), 1)
	if waited := time.Since(from); waited > 3*time.Second {
		t.Errorf("the first launch of a new share waited for %v", waited)
	}
}
