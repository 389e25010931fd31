package cli

import (
	"bytes"
	"strings"
	"testing"
)

func runTLP(stdin string, args ...string) (string, error) {
	cmd := newTLPCommand()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var out bytes.Buffer
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

func TestTLPCommands(t *testing.T) {
	const read = "000000010100170ffee01000"
	for _, c := range []struct {
		name, stdin string
		args        []string
		want        []string // parts of the output, or of the error where fails
		fails       bool
	}{
		{"table", "", []string{"decode", read}, []string{"BYTE", "requester", "01:00.0", "8-11", "address 0xfee01000"}, false},
		{"table from stdin", read, []string{"decode"}, []string{"MRd"}, false},
		{"table from stdin by a dash", read, []string{"decode", "-"}, []string{"MRd"}, false},
		{"several", "", []string{"decode", read, "0x02000001,0000000f,000003f8"}, []string{"packet 1: MRd", "packet 2: IORd"}, false},
		{"header", "", []string{"decode", "--header", "40000001", "0000000f", "fee01004"}, []string{"MWr"}, false},
		{"json", "", []string{"decode", "--json", read}, []string{`"type": "MRd"`, `"addr": "0xfee01000"`}, false},
		{"encode", `{"type":"MRd","addr":"0xfee01000","requester":"01:00.0","tag":23}`, []string{"encode"}, []string{read + "\n"}, false},
		{"cut short", "", []string{"decode", read[:20]}, []string{"truncated", "got 10"}, true},
		{"malformed", "", []string{"decode", "000000010100171ffee01000"}, []string{"last_be", "2.2.5"}, true},
		{"no hex", "", []string{"decode", "zz"}, []string{`"zz"`}, true},
		{"nothing", "", []string{"decode"}, []string{"no packet"}, true},
		{"encode what cannot be sent", `{"type":"MRd","tc":8}`, []string{"encode"}, []string{"tc"}, true},
		{"encode with arguments", "", []string{"encode", "x"}, []string{"unknown command"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := runTLP(c.stdin, c.args...)
			if (err != nil) != c.fails {
				t.Fatalf("error %v", err)
			}
			if err != nil {
				out = err.Error()
			}
			for _, part := range c.want {
				if !strings.Contains(out, part) {
					t.Errorf("output does not have %q:\n%s", part, out)
				}
			}
		})
	}
}

func TestTLPDecodeAndEncodeAreInverse(t *testing.T) {
	const packets = "91012345208820200100a5ff000123456789abc0\n040000010000070f0200a013\n"
	doc, err := runTLP(packets, "decode", "--json")
	if err != nil {
		t.Fatal(err)
	}
	got, err := runTLP(doc, "encode")
	if err != nil {
		t.Fatal(err)
	}
	if got != packets {
		t.Errorf("got %s, want %s", got, packets)
	}
}
