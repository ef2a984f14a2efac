package main

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/serve"
)

// Who fetches plans of a mixed fleet learns from the setup how each kind of group lays
// out its sequences: as much as stands in the document of solve.
func TestSetupSaysHowGroupsAreLaidOut(t *testing.T) {
	o := serving{limits: serve.DefaultLimits(), workers: 1}
	o.cluster, o.model = "1x(2 h100_sxm + 2 a100_sxm)", filepath.Join("testdata", "config.json")
	o.recompute, o.zero, o.overlapZero, o.ringBuffers, o.lossChunk, o.accumulate = "none", string(costmodel.Zero3), true, 2, "1k", 1
	a := &app{errOut: &bytes.Buffer{}}
	prices, err := a.prices(t.Context(), o.problem, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, k := range prices.Classes { // as prices of one length have it
		prices.Classes[i].OwnLast = len(k.Groups) > 1
	}
	c, err := o.config(prices)
	if err != nil {
		t.Fatal(err)
	}
	mixed, last := 0, 0
	for i, k := range c.Setup.Classes {
		degree := prices.Classes[i].Degree()
		seen := make([]bool, degree)
		if k.OwnLast != prices.Classes[i].OwnLast {
			t.Errorf("class %s: own blocks last %t, priced otherwise", k.Name, k.OwnLast)
		}
		if k.OwnLast {
			last++
		}
		for j, g := range k.Groups {
			for n, m := range g {
				if want := prices.Classes[i].Groups[j][n]; m.Rank != want.Rank || m.QHeads != want.QHeads {
					t.Errorf("class %s: %+v, priced as %+v", k.Name, m, want)
				}
				seen[m.Rank] = true
			}
		}
		for r, in := range seen {
			if !in {
				t.Errorf("class %s: nothing is said of device %d", k.Name, r)
			}
		}
		if k.Uses[0] > 0 && k.Uses[1] > 0 {
			mixed++
		}
	}
	if mixed == 0 || last == 0 {
		t.Errorf("of kinds of groups %d mix the types, %d have own blocks last", mixed, last)
	}
}
