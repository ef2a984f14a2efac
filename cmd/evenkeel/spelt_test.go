package main

import "testing"

// A GPU's own name is its model, in clusters as in import --device; what a profile has by its
// own name stays, and what may be several models too.
func TestSpeltModel(t *testing.T) {
	models := append(datasheets(), "NVIDIA A30", "mine")
	for given, want := range map[string]string{
		"A100-SXM4-40GB": "a100_sxm_40gb", "NVIDIA A100-SXM4-80GB": "a100_sxm", "H100-SXM5-80GB/mine": "h100_sxm/mine", "V100-SXM2-32GB": "v100_sxm_32gb",
		"RTX-A6000": "a6000", "A100-SXM": "a100_sxm", "H200": "h200_sxm", "l4_24gb": "l4",
		"NVIDIA A30": "NVIDIA A30", "mine": "mine", "a100_40gb": "a100_40gb", "h100": "h100", "h100_smx": "h100_smx", "": "",
	} {
		if got := speltModel(given, models); got != want {
			t.Errorf("%q: %q, want %q", given, got, want)
		}
	}
}
