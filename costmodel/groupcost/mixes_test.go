package groupcost_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/internal/units"
)

// mixesOf lists the mixes of a cluster and how fast its pools are; of every two nodes,
// unlike the next, by their network cards if asked for.
func mixesOf(t *testing.T, cluster string, cards bool) ([][]int, []float64) {
	t.Helper()
	q, j := referenceJob(t, cluster, nil)
	for i := range j.Cluster.Nodes {
		if cards {
			j.Cluster.Nodes[i].NICs = 1 + i/2%8
		}
	}
	uses, perHead, err := groupcost.Mixes(t.Context(), q, j)
	if err != nil {
		t.Fatal(err)
	}
	return uses, perHead
}

// everyMix is the mixes of pools with these levels, of every set of pools.
func everyMix(levels [][]int) [][]int {
	var sets [][]int
	for bits := range 1 << len(levels) {
		var set []int
		for p := range levels {
			if bits>>p&1 == 1 {
				set = append(set, p)
			}
		}
		sets = append(sets, set)
	}
	slices.SortStableFunc(sets, func(a, b []int) int { return cmp.Compare(len(a), len(b)) })
	most := len(slices.MaxFunc(levels, func(a, b []int) int { return cmp.Compare(len(a), len(b)) }))
	at := func(p, l int) int { return levels[p][min(l, len(levels[p])-1)] }
	var all [][]int
	add := func(uses []int) {
		if !slices.ContainsFunc(all, func(u []int) bool { return slices.Equal(u, uses) }) {
			all = append(all, uses)
		}
	}
	for _, set := range sets[len(levels)+1:] { // without none and one
		for l := range most {
			uses := make([]int, len(levels))
			for _, p := range set {
				uses[p] = at(p, l)
			}
			add(uses)
			for _, p := range set {
				if up := slices.Clone(uses); len(set) == 2 && l+1 < most {
					up[p] = at(p, l+1)
					add(up)
				}
			}
		}
	}
	return all
}

// While that makes few every set of pools joins, in this order: plans of such clusters
// rest on it.
func TestMixesOfFewPools(t *testing.T) {
	for _, c := range []struct {
		cluster string
		levels  [][]int
	}{
		{"1x8 h100_sxm", [][]int{{4, 8}}},
		{"3x8 h100_sxm + 1x1 a100_sxm", [][]int{{4, 8, 16, 24}, {1}}},
		{"5x2 b200_sxm + 2x4 h100_sxm + 1x4 a100_sxm", [][]int{{1, 2, 4, 8, 10}, {2, 4, 8}, {2, 4}}},
		{
			"2x2 b200_sxm + 2x2 h100_sxm + 2x2 a100_sxm + 2x2 gb200 + 1x2 rtx_pro_6000_server + 1x1 b60",
			[][]int{{1, 2, 4}, {1, 2, 4}, {1, 2, 4}, {1, 2, 4}, {1, 2}, {1}},
		},
		{
			"1x2 b200_sxm + 1x4 h100_sxm + 1x4 a100_sxm + 1x2 gb200 + 1x2 rtx_pro_6000_server + 1x1 b60 + 1x1 a100_sxm + 1x1 h100_sxm",
			[][]int{{1, 2}, {2, 4}, {2, 4}, {1, 2}, {1, 2}, {1}, {1}, {1}},
		},
	} {
		got, _ := mixesOf(t, c.cluster, false)
		if want := everyMix(c.levels); !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%s: %v, want %v", c.cluster, got, want)
		}
	}
}

// Of more pools those join that are next to one another in speed: at most 7 groups of two
// and 3 of more at the levels of two nodes, where every set of 15 pools would make 98,676.
// All devices are one of them still.
func TestMixesOfManyPools(t *testing.T) {
	uses, perHead := mixesOf(t, "10x8 h100_sxm + 10x8 a100_sxm + 10x8 b200_sxm", true)
	pools := len(perHead)
	if want := (pools-1)*7 + (pools-1)*(pools-2)/2*3; pools != 15 || len(uses) != want {
		t.Fatalf("%d mixes of %d pools, want %d", len(uses), pools, want)
	}
	seen := map[string]bool{}
	for _, u := range uses {
		seen[fmt.Sprint(u)] = true
		in, out := []float64{}, []float64{}
		for p, n := range u {
			if n > 0 {
				in = append(in, perHead[p])
			} else {
				out = append(out, perHead[p])
			}
		}
		for _, x := range out {
			if slices.Min(in) < x && x < slices.Max(in) {
				t.Errorf("%v: leaves out a pool that is faster than some and slower than others of %v", u, perHead)
			}
		}
	}
	all := seen[fmt.Sprint(slices.Repeat([]int{16}, pools))]
	if len(seen) != len(uses) || !all {
		t.Errorf("%d of %d mixes are different; all devices are one: %t", len(seen), len(uses), all)
	}
}

// Shares by speed are faster than equal ones on the same devices of several types, with the same
// all-to-alls, for a sequence of a typical length.
func TestSharesBySpeedAreFaster(t *testing.T) {
	q, j := referenceJob(t, "2x8 h100_sxm + 2x8 a100_sxm", nil)
	probes, err := groupcost.Probes(t.Context(), q, j, costmodel.Documents{})
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, p := range probes {
		if p.Uses[0] == 0 || p.Uses[1] == 0 {
			continue
		}
		n := p.Uses[0] + p.Uses[1]
		docs := costmodel.Documents{Tokens: units.Tokens(4096 * n), Count: 1}
		took, err := p.Passes(docs)
		if err != nil {
			t.Fatal(err)
		}
		p.Shares = slices.Repeat([]float64{1 / float64(n)}, n)
		even, err := p.Passes(docs)
		if err != nil {
			t.Fatal(err)
		}
		compared++
		if took.Time(false) > 0.95*even.Time(false) {
			t.Errorf("%v in all-to-alls of %d: %v by speed, %v in equal shares", p.Uses, p.Heads, took.Time(false), even.Time(false))
		}
	}
	if compared < 7 {
		t.Errorf("%d groups of two types compared", compared)
	}
}
