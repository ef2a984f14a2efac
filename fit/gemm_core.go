package fit

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// gemmRows is the number of points that a core is estimated on: more move its
// coefficients by less than their own noise.
const gemmRows = 1500

// fitGEMMCore estimates the core of a device's matrix products. What the
// points do not tell stays near the prior: another device's core scaled to
// this one, or, without, the datasheet with what is usual for tensor cores.
//
// Errors: points that are not matrix products or not of one precision.
func fitGEMMCore(dev op.DeviceType, points []Point, prior *costmodel.GEMMCore) (*costmodel.GEMMCore, error) {
	if len(points) == 0 {
		return nil, fmt.Errorf("no points to fit a matrix product's law to")
	}
	first, ok := points[0].Shape.(op.GEMM)
	for _, p := range points {
		g, is := p.Shape.(op.GEMM)
		if !is || !ok || g.DType != first.DType {
			return nil, fmt.Errorf("point %s: %s: want matrix products of one precision, %s", p.Key, p.Shape.Kind(), first.DType)
		}
	}
	if prior == nil {
		prior = usualGEMM(dev, first.DType, points)
	}
	e := gemmStart(prior, points)
	e.solve(gemmRounds)
	return e.core, e.core.Validate()
}

const gemmRounds = 60

// gemmStart tries where to begin: the menu's choice leaves the problem with
// many local minima, and they lie apart by how whole the last wave is and how
// fast the tiles are. The best on a third of the points goes on with all.
func gemmStart(prior *costmodel.GEMMCore, points []Point) *gemmEstimate {
	few := gemmSpread(points, gemmRows/3)
	var best *gemmEstimate
	least := math.Inf(1)
	for _, whole := range []float64{0.1, 1, 8} {
		for _, rate := range []float64{1, 1.4} {
			e := newGEMMEstimate(prior, few)
			e.begin("whole_odds", whole)
			e.begin("flops_per_s", rate)
			if cost := e.solve(gemmRounds / 2); cost < least {
				best, least = e, cost
			}
		}
	}
	e := newGEMMEstimate(prior, gemmSpread(points, gemmRows))
	e.theta = best.theta
	return e
}

// usualGEMM is the core before any point: shares of the datasheet that tensor
// core libraries usually reach, latencies of recent GPUs. A device without a
// datasheet is taken for twice what its best point reaches.
func usualGEMM(dev op.DeviceType, dtype op.DType, points []Point) *costmodel.GEMMCore {
	peak, memory, l2 := dev.Sheet.PeakPerS(dtype), dev.Sheet.MemoryPerS, float64(dev.Sheet.L2)
	bestRate, bestBytes := 0.0, 0.0
	for _, p := range points {
		w := p.Shape.Work()
		bestRate = max(bestRate, float64(w.FLOPs)/p.Seconds)
		bestBytes = max(bestBytes, float64(w.Bytes())/p.Seconds)
	}
	if peak == 0 {
		peak = 1.2 * bestRate
	}
	if memory == 0 {
		memory = 1.2 * bestBytes
	}
	if l2 == 0 {
		l2 = 32 << 20
	}
	// Caches of recent GPUs pass about three times what memory does.
	sm := 3 * memory / float64(max(dev.Parallel, 1))
	return &costmodel.GEMMCore{
		DType: dtype, Parallel: max(dev.Parallel, 1), L2: 0.7 * l2, PerS: 0.8 * peak, MemPerS: 0.8 * memory,
		Launch: 4e-6, Step: 1e-7, Load: 0.3 / sm, Tile: 3e-7, Store: 1 / sm, Whole: 1, Crowd: 20,
		SplitS: 1e-6, SplitByte: 1 / (3 * memory), Sharp: 2, Cached: 0.4, Copies: 4, Reload: 1, Cast: 1 / memory,
		Power: 0.1, PowerS: 5e-3, VLaunch: 3e-6, VPerS: 0.8 * memory, Tiles: costmodel.GEMMTiles(),
	}
}

// gemmWidth is by how much, as a log, a coefficient may well differ from its
// prior.
func gemmWidth(name string) float64 {
	switch {
	case strings.HasSuffix(name, ".rate"):
		return 0.15
	case name == "flops_per_s", name == "memory_bytes_per_s":
		return 0.3
	case name == "l2_bytes", name == "vector_bytes_per_s":
		return 0.4
	case name == "weight_copies":
		return 0.5
	case name == "launch_s", name == "vector_launch_s", name == "power", name == "reload", name == "cached_odds", name == "sharpness":
		return 0.7
	}
	return 1
}

// gemmSpread takes at most n points: half of them as they come by their keys,
// as the errors are counted, half in turn from each octave of time, so that
// the few long ones, on which larger shapes rest, are among them.
func gemmSpread(points []Point, n int) []Point {
	if len(points) <= n {
		return points
	}
	sorted := slices.Clone(points)
	slices.SortFunc(sorted, func(a, b Point) int {
		return cmp.Or(cmp.Compare(bits.Reverse64(a.rank), bits.Reverse64(b.rank)), cmp.Compare(a.Key, b.Key))
	})
	taken := sorted[:n/2]
	octaves := map[int][]Point{}
	var names []int
	for _, p := range sorted[n/2:] {
		_, o := math.Frexp(p.Seconds)
		if octaves[o] == nil {
			names = append(names, o)
		}
		octaves[o] = append(octaves[o], p)
	}
	slices.Sort(names)
	for len(taken) < n {
		for _, o := range names {
			if rest := octaves[o]; len(rest) > 0 && len(taken) < n {
				taken, octaves[o] = append(taken, rest[0]), rest[1:]
			}
		}
	}
	return taken
}
