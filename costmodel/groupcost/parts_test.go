package groupcost_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/reference"
)

// libraries are what a device type says of its software.
var libraries = regexp.MustCompile(`/[^ )]+`)

// partsOf are the parts of a cluster, as shorthands.
func partsOf(t *testing.T, cluster string) (of []string, parts []groupcost.Part, whole costmodel.Cluster) {
	t.Helper()
	profile, j := reference.Job(t, reference.Llama(2), cluster, 1)
	for _, x := range fromLaws(t, costmodel.NewPredictor(profile), j).Parts() {
		of, parts = append(of, libraries.ReplaceAllString(x.Cluster().String(), "")), append(parts, x)
	}
	return of, parts, j.Cluster
}

// Where every node has one type, parts are whole nodes: of each type the 1, 2, 4 and so on largest
// and all of them, and all nodes but one or all of a kind, whatever the cluster.
func TestPartsOfNodesOfOneTypeAreWholeNodes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	types := []string{"h100_sxm", "a100_sxm", "b60", "h200_sxm"}
	for range 12 {
		var terms []string
		for range 1 + r.IntN(4) {
			terms = append(terms, fmt.Sprintf("%dx%d %s", 1+r.IntN(3), 1+r.IntN(3), types[r.IntN(len(types))]))
		}
		cluster := strings.Join(terms, " + ")
		_, parts, whole := partsOf(t, cluster)
		got := map[string]bool{}
		for _, x := range parts {
			if x.Nodes != len(x.Cluster().Nodes) || x.Devices != len(x.Cluster().Ranks()) {
				t.Errorf("%s: %+v of %s", cluster, x, x.Cluster())
			}
			got[wholeNodes(t, whole, x.Cluster())] = true
		}
		if want := nodeParts(whole); len(got) != len(parts) || !slices.Equal(sorted(got), sorted(want)) {
			t.Errorf("%s: parts\n%s\nwant\n%s", cluster, strings.Join(sorted(got), "\n"), strings.Join(sorted(want), "\n"))
		}
	}
}

// wholeNodes names the nodes of a part, each of which must be a node of the cluster.
func wholeNodes(t *testing.T, whole, part costmodel.Cluster) string {
	t.Helper()
	var names []string
	for _, n := range part.Nodes {
		at := slices.IndexFunc(whole.Nodes, func(x costmodel.Node) bool { return x.Name == n.Name })
		if at < 0 || !slices.Equal(whole.Nodes[at].Devices, n.Devices) {
			t.Errorf("%+v is no node of %s", n, whole)
		}
		names = append(names, n.Name)
	}
	return strings.Join(names, " ")
}

// nodeParts names the parts of a cluster whose nodes each have one type.
func nodeParts(c costmodel.Cluster) map[string]bool {
	all := map[string]bool{}
	add := func(in func(n int) bool) {
		var names []string
		for i, n := range c.Nodes {
			if in(i) {
				names = append(names, n.Name)
			}
		}
		if len(names) > 0 && len(names) < len(c.Nodes) {
			all[strings.Join(names, " ")] = true
		}
	}
	pools, kinds := map[string][]int{}, map[string][]int{}
	for i, n := range c.Nodes {
		pool := n.Devices[0].Device + n.Link
		pools[pool] = append(pools[pool], i)
		kinds[fmt.Sprint(pool, n.Size())] = append(kinds[fmt.Sprint(pool, n.Size())], i)
	}
	for _, of := range pools {
		slices.SortStableFunc(of, func(a, b int) int { return c.Nodes[b].Size() - c.Nodes[a].Size() })
		for n := 1; n < 2*len(of); n *= 2 {
			some := of[:min(n, len(of))]
			add(func(n int) bool { return slices.Contains(some, n) })
		}
	}
	for _, of := range kinds {
		if len(kinds) < 2 || len(kinds) > 4 {
			break
		}
		add(func(n int) bool { return n != of[len(of)-1] })
		add(func(n int) bool { return !slices.Contains(of, n) })
	}
	return all
}

func sorted(of map[string]bool) (all []string) {
	for x := range of {
		all = append(all, x)
	}
	slices.Sort(all)
	return all
}

// Of nodes with several types those of one are parts, and all but those of one.
func TestPartsOfTypesInsideNodes(t *testing.T) {
	for cluster, want := range map[string][]string{
		"1x(4 h100_sxm + 1 b60)":                {"1x4 h100_sxm", "1x1 b60"},
		"2x(2 h100_sxm + 1 b60)":                {"2x2 h100_sxm", "1x2 h100_sxm", "2x1 b60", "1x1 b60"},
		"1x(2 h100_sxm + 1 b60) + 1x2 a100_sxm": {"1x2 h100_sxm + 1x2 a100_sxm", "1x(2 h100_sxm + 1 b60)", "1x1 b60 + 1x2 a100_sxm", "1x2 a100_sxm", "1x2 h100_sxm", "1x1 b60"},
	} {
		got, parts, whole := partsOf(t, cluster)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", cluster, got, want)
		}
		for _, x := range parts {
			for _, n := range x.Cluster().Nodes {
				at := slices.IndexFunc(whole.Nodes, func(x costmodel.Node) bool { return x.Name == n.Name })
				if at < 0 || whole.Nodes[at].Link != n.Link || slices.ContainsFunc(n.Devices, func(m op.Member) bool { return !slices.Contains(whole.Nodes[at].Devices, m) }) {
					t.Errorf("%s: %+v", cluster, n)
				}
			}
		}
	}
}
