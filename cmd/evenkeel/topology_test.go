package main

import (
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/profile/importer"
)

// A GPU's datasheet has the rate of all its NVLinks, of which one carries 25 GB/s in a direction
// up to Hopper and 50 GB/s since Blackwell.
func TestNVLinksOfDatasheets(t *testing.T) {
	known := importer.Models()
	for name, want := range map[string]int{
		"v100_sxm_16gb": 6, "a100_sxm": 12, "h100_sxm": 18, "h20": 18, "gh200": 18,
		"b200_sxm": 18, "gb200": 18, "b300_sxm": 18, "gb300": 18, "l40s": 0, "mi300x": 0,
	} {
		at := slices.IndexFunc(known, func(m importer.Model) bool { return m.Name == name })
		if at < 0 {
			t.Errorf("%s: no model of that name", name)
		} else if got := nvlinks(known[at]); got != want {
			t.Errorf("%s: %d NVLinks, want %d", name, got, want)
		}
	}
}
