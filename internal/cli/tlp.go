package cli

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/tlp"
)

func newTLPCommand() *cobra.Command {
	return group("tlp", "Decode and encode PCI Express transaction layer packets",
		`Decode and encode PCI Express transaction layer packets (non-flit mode).

"encode" reads the output of "decode --json" and restores the same bytes. The file
tlp/README.md in the source describes the JSON.`,
		`  dxpu tlp decode 0000000101001702fee01004`,
		newTLPDecodeCommand(), newTLPEncodeCommand())
}

func newTLPDecodeCommand() *cobra.Command {
	var asJSON, header bool
	cmd := &cobra.Command{
		Use: "decode [HEX...]", Short: "Print packets field by field",
		Long: `Print packets field by field, or as JSON.

HEX contains the bytes of one or several packets in the order of the wire, with the
digest if TD is set, without sequence number and LCRC. Spaces, line breaks, colons,
commas and 0x are ignored. Without HEX, or with -, the command reads standard input:
one or several packets on each line, or one packet over several lines.

--header reads headers without payload, such as the header log of Advanced Error
Reporting in the kernel's messages.

The exit code is 1 if a packet is malformed or truncated.`,
		Example: `  dxpu tlp decode 0000000101001702fee01004
  dxpu tlp decode --header 40000001 0000000f fee01004
  dxpu tlp decode --json 04000001 0000070f 02000000 | dxpu tlp encode`,
		RunE: func(cmd *cobra.Command, args []string) error {
			packets, err := readPackets(cmd.InOrStdin(), args, header)
			if err != nil {
				return err
			}
			if asJSON {
				return tlp.WriteJSON(cmd.OutOrStdout(), packets)
			}
			return printPackets(cmd.OutOrStdout(), packets)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON for encode")
	cmd.Flags().BoolVar(&header, "header", false, "read headers without payload and digest")
	return cmd
}

func newTLPEncodeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "encode", Short: "Print the bytes of packets described in JSON", Args: cobra.NoArgs,
		Long: `Print the bytes of packets in hex, one packet on each line.

Standard input contains one JSON object, an array of objects, or a sequence of
objects, in the form of "decode --json". Only the type is required; tlp/README.md in
the source lists the defaults. "digest": "auto" computes the ECRC.

The exit code is 1 if a packet is invalid.`,
		Example: `  echo '{"type": "MRd", "addr": "0xfee01000", "requester": "01:00.0"}' | dxpu tlp encode`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			packets, err := tlp.ReadJSON(cmd.InOrStdin())
			if err != nil {
				return err
			}
			for i := range packets {
				if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%x\n", packets[i].Append(nil)); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// readPackets decodes the arguments, or standard input without arguments.
func readPackets(stdin io.Reader, args []string, header bool) ([]tlp.Packet, error) {
	groups := args
	if len(args) == 0 || len(args) == 1 && args[0] == "-" {
		text, err := io.ReadAll(stdin)
		if err != nil {
			return nil, fmt.Errorf("tlp: standard input: %w", err)
		}
		groups = strings.Split(strings.TrimSpace(string(text)), "\n")
	}
	return tlp.ParseGroups(groups, header)
}

func printPackets(w io.Writer, packets []tlp.Packet) error {
	var buf bytes.Buffer
	for i := range packets {
		p := &packets[i]
		if len(packets) > 1 {
			if i > 0 {
				buf.WriteByte('\n')
			}
			fmt.Fprintf(&buf, "packet %d: %v\n", i+1, p.Type)
		}
		if err := tlp.WriteTable(&buf, p); err != nil {
			return err
		}
	}
	_, err := w.Write(buf.Bytes())
	return err
}
