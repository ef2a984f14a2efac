package fit

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// From a node an octave beyond what was measured along an axis the correction may not fall, where
// it is held; up to there, and however far along another axis, it may.
func TestNoFallIsLeftFarBeyondThePoints(t *testing.T) {
	l := &correction{ends: []float64{8, 3}, k: &kriging{grids: []*grid{newGrid([][]float64{{7, 8, 9, 10}, {3, 5}}, []float64{1, 1}, 1)}}}
	for held, want := range map[bool][]float64{false: {1, 2, 3, 4, 5, 6, 7, 8}, true: {1, 2, 3, 4, 0, 0, 0, 0}} {
		fall := []float64{1, 2, 3, 4, 5, 6, 7, 8}
		l.shape.held = held
		if l.hold(0, fall); !slices.Equal(fall, want) {
			t.Errorf("held %v: may fall by %v, want %v", held, fall, want)
		}
	}
}

// Points at random places have a lattice of a bounded number of nodes, both ends of every
// axis on it; as many as a prior has, and all corners of a table, are kept.
func TestLatticesOfFewPointsAreSmall(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	scattered := make([][]float64, 80)
	for i := range scattered {
		scattered[i] = []float64{11 * r.Float64(), 9 * r.Float64(), 9 * r.Float64()}
	}
	var table [][]float64
	for i := range 700 {
		table = append(table, []float64{float64(i % 30), float64(i / 30 % 12), float64(i % 13)})
	}
	thin := []float64{0, 0, 0}
	prior := &costmodel.Field{Values: make(costmodel.NodeValues, 20_000)}
	for name, c := range map[string]struct {
		places      [][]float64
		prior       *costmodel.Field
		least, most int
	}{
		"scattered":              {scattered, nil, fewNodes / 3, fewNodes},
		"scattered with a prior": {scattered, prior, 20_000 / 3, 20_000},
		"a table":                {table, nil, 30 * 12 * 13, 30 * 12 * 13},
	} {
		axes := latticeOf(c.places, thin, c.prior)
		if n := sizeOf(axes); n < c.least || n > c.most {
			t.Errorf("%s: %d nodes, want %d to %d", name, n, c.least, c.most)
		}
		for a, nodes := range axes {
			for _, x := range c.places {
				if x[a] < nodes[0] || x[a] > nodes[len(nodes)-1] {
					t.Fatalf("%s: %v lies beyond the nodes %v of axis %d", name, x[a], nodes, a)
				}
			}
		}
	}
}

// A GPU of which only the generation or the cache is known has laws of tiles; a processor,
// of which no datasheet says anything, has not.
func TestAnythingOfADatasheetMakesACore(t *testing.T) {
	for _, c := range []struct {
		sheet op.Sheet
		core  bool
	}{{op.Sheet{}, false}, {op.Sheet{Arch: "sm103"}, true}, {op.Sheet{L2: 1 << 25}, true}, {op.Sheet{BF16PerS: 1e15}, true}} {
		for _, k := range []op.Kind{op.KindAttnFwd, op.KindAttnBwd, op.KindGEMM} {
			if _, ok := coreOf(k, op.DeviceType{Sheet: c.sheet}); ok != c.core {
				t.Errorf("%s with %+v has a core: %t", k, c.sheet, ok)
			}
		}
	}
}

// Messages through sockets are not expected to be as fast as a GPU's own links.
func TestSocketsAreNoLinksOfAGPU(t *testing.T) {
	h100 := op.Sheet{LinkPerS: 450e9, HostPerS: 64e9, NetPerS: 50e9}
	for _, nodes := range []int{1, 2} {
		g := op.GroupType{Members: []op.Member{{Device: "h100", Count: 2}}, Nodes: nodes, Link: "gloo_tcp"}
		if got, want := fabricOf(g, h100, 1e9), unknownFabric(1e9); got != want {
			t.Errorf("%d nodes: %+v, want %+v", nodes, got, want)
		}
		if g.Link = "nvlink"; fabricOf(g, h100, 1e9) == unknownFabric(1e9) {
			t.Errorf("%d nodes over nvlink: nothing is known", nodes)
		}
	}
}
