package share_test

import (
	"math/rand/v2"
	"testing"
)

// Each policy is fuzzed through its interface: the bytes are events, and the checker
// fails when a decision does not fit them.

func fuzz(f *testing.F, name string) {
	for seed := range uint64(3) {
		rng := rand.New(rand.NewPCG(seed, 2))
		data := make([]byte, 12*60)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) { drive(t, name, data[:min(len(data), 12*300)]) })
}

func FuzzTimeslice(f *testing.F) { fuzz(f, "timeslice") }

func FuzzStreams(f *testing.F) { fuzz(f, "streams") }

func FuzzMPS(f *testing.F) { fuzz(f, "mps") }

func FuzzGemini(f *testing.F) { fuzz(f, "gemini") }

func FuzzGaia(f *testing.F) { fuzz(f, "gaia") }

func FuzzGaiaPI(f *testing.F) { fuzz(f, "gaiapi") }

func FuzzTGS(f *testing.F) { fuzz(f, "tgs") }

func FuzzAntMan(f *testing.F) { fuzz(f, "antman") }

func FuzzREEF(f *testing.F) { fuzz(f, "reef") }

func FuzzOrion(f *testing.F) { fuzz(f, "orion") }

func FuzzPaella(f *testing.F) { fuzz(f, "paella") }

func FuzzMIG(f *testing.F) { fuzz(f, "mig") }

func FuzzMuxFlow(f *testing.F) { fuzz(f, "muxflow") }
