//go:build linux

package cli

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/internal/pool/gpuerr"
)

func newBoxFailCommand() *cobra.Command {
	var admin, fault string
	var slot, code uint32
	var whole bool
	cmd := &cobra.Command{
		Use: "fail", Short: "Make a software GPU of a running box fail", Args: cobra.NoArgs,
		Long: `Inject an error into a software GPU of a running box, to see the reaction of the pool.
--xid is a number as NVIDIA's driver logs it; --fault is kill, hang, ecc-corrected or
ecc-uncorrectable. The box must run on this machine, with --admin-listen and
--allow-faults.

XID 48 calls for a reset, and 79 (fallen off the bus) for a replacement. XID 31 is an
error of the application. "dxpu describe gpu" shows the counted errors. A slice
of a GPU fails alone; with --whole-gpu the GPU fails, and with it all its slices.`,
		Example: `  dxpu box fail --admin http://127.0.0.1:9100 --slot 0 --xid 48
  dxpu box fail --admin http://127.0.0.1:9100 --slot 2 --fault kill`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{"slot": {strconv.FormatUint(uint64(slot), 10)}}
			switch {
			case (fault == "") == (code == 0):
				return usage(withHint(errors.New("give either --xid or --fault"), "dxpu box fail --slot 0 --xid 48"))
			case fault != "":
				query.Set("fault", fault)
			default:
				query.Set("xid", strconv.FormatUint(uint64(code), 10))
			}
			if whole {
				query.Set("whole", "true")
			}
			target, err := adminURL(admin, "/faults", query)
			if err != nil {
				return usage(err)
			}
			answer, err := adminRequest(cmd.Context(), http.MethodPost, target)
			if err != nil {
				return err
			}
			_, err = io.Copy(cmd.OutOrStdout(), answer)
			return errors.Join(err, answer.Close())
		},
	}
	adminFlag(cmd, &admin)
	cmd.Flags().Uint32Var(&slot, "slot", 0, "`number` of the slot")
	cmd.Flags().BoolVar(&whole, "whole-gpu", false, "inject it into all slices of the GPU that the slot's device is a slice of")
	cmd.Flags().Uint32Var(&code, "xid", 0, "`number` of the error to inject")
	cmd.Flags().StringVar(&fault, "fault", "", "fault to inject: kill, hang, ecc-corrected or ecc-uncorrectable")
	return cmd
}

// faultHandler injects a fault into a software GPU: POST /faults?slot=0 with
// fault=kill or xid=48. A fault takes a GPU away from its tenant.
func faultHandler(b *boxproxy.Box, allowed bool) http.Handler {
	return agent.LocalHandler(allowed, "a fault takes a GPU away from its tenant: start the box with --allow-faults to allow it", func(w http.ResponseWriter, r *http.Request) {
		slot, err := strconv.Atoi(r.FormValue("slot"))
		if err != nil {
			http.Error(w, "slot: want a number, as in /faults?slot=0&xid=48", http.StatusBadRequest)
			return
		}
		inject, what, err := faultOf(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		slots := []int{slot}
		if r.FormValue("whole") != "" {
			slots = b.Siblings(slot)
		}
		for _, slot := range slots {
			injected := false
			err = b.With(r.Context(), slot, func(d device.Device) {
				if g, ok := d.(*gpu.GPU); ok {
					inject(g)
					injected = true
				}
			})
			if err == nil && !injected {
				err = fmt.Errorf("slot %d contains no software GPU", slot)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusNotFound)
				return
			}
			fmt.Fprintf(w, "slot %d: %s\n", slot, what)
		}
	})
}

// faultOf reads the fault from a request.
func faultOf(r *http.Request) (inject func(*gpu.GPU), what string, err error) {
	if s := r.FormValue("xid"); s != "" {
		code, err := strconv.ParseUint(s, 10, 32)
		if err != nil || code == 0 {
			return nil, "", fmt.Errorf("xid: %q is not the number of an error", s)
		}
		return func(g *gpu.GPU) { g.InjectXID(uint32(code)) }, gpuerr.Lookup(uint32(code)).String(), nil
	}
	fault, err := gpu.ParseFault(r.FormValue("fault"))
	if err != nil {
		return nil, "", err
	}
	return func(g *gpu.GPU) { g.Inject(fault) }, fault.String(), nil
}
