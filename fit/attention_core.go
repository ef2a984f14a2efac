package fit

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

const (
	// coreTrial and coreRows bound the rows that a structure is tried on and
	// that the best one is fitted to, and so the time of a fit. More than 1,500
	// were not tried.
	coreTrial, coreRows = 300, 1500
	// trialRounds and fullRounds bound the steps of the estimate.
	trialRounds, fullRounds = 10, 40
	// worthwhile is by how much another structure must lower the loss: as much
	// as one point that comes from 15 % off to exact.
	worthwhile = 4
	// fewestForCore points are what is left of the fewest for a law when some
	// are held out to judge it.
	fewestForCore = 4
)

// fitAttentionCore estimates the core of one kernel on one device from at least
// fewestForCore points. Structures are tried one after another on a few rows well
// spread over the times, and the best is fitted to more of them. A prior is a
// core of the same device or one scaled to it: the estimate starts there and
// leaves it only as far as the points ask for.
//
// Errors: too few points, points that are not attention or of no time.
func fitAttentionCore(dev op.DeviceType, backward bool, points []Point, prior *costmodel.AttentionCore) (*costmodel.AttentionCore, error) {
	if len(points) < fewestForCore {
		return nil, fmt.Errorf("%s of attention, too few for a core (want %d)", units.Count(len(points), "point"), fewestForCore)
	}
	for _, p := range points {
		if _, ok := calledFor(p.Shape); !ok || !(p.Seconds > 0) {
			return nil, fmt.Errorf("%s: %v s: want attention with a positive time", p.Shape.Kind(), p.Seconds)
		}
	}
	s := &coreSearch{dev: dev, backward: backward, prior: prior, points: wellSpread(points, coreTrial), loss: math.Inf(1)}
	s.structures()
	best := newCoreFit(s.start(s.best), backward, prior != nil, wellSpread(points, coreRows))
	best.core = s.best
	best.solve(fullRounds)
	return &best.core, best.core.Validate()
}

// blockOf is the block of a forward or backward shape. Packed documents are no block.
func blockOf(s op.Shape) (op.Attention, bool) {
	switch a := s.(type) {
	case op.AttnFwd:
		return a.Attention, true
	case op.AttnBwd:
		return a.Attention, true
	}
	return op.Attention{}, false
}

// coreSearch tries structures and keeps the best.
type coreSearch struct {
	dev      op.DeviceType
	backward bool
	prior    *costmodel.AttentionCore
	points   []Point

	best  costmodel.AttentionCore
	loss  float64
	tried []costmodel.AttentionCore // structures, without coefficients
}

// structures goes through the flags: the rows of a task with packing and
// splitting in every combination, then the keys of a step and whole waves, each
// for the best so far.
func (s *coreSearch) structures() {
	a, _ := calledFor(s.points[0].Shape)
	first := costmodel.AttentionCore{TileRows: 128, TileKeys: 128, Waves: a.mask == op.Full}
	if s.prior != nil {
		first = *s.prior
	}
	s.try(first)
	for _, rows := range []int{128, 64, 192, 256} {
		for _, packed := range s.choices(s.grouped()) {
			for _, split := range s.choices(!a.packed) {
				c := first
				c.TileRows, c.Packed, c.SplitKV = rows, packed, split
				s.try(c)
			}
		}
	}
	for _, keys := range []int{64, 96, 192, 256} {
		c := s.best
		c.TileKeys = keys
		s.try(c)
	}
	if a.mask == op.Full {
		c := s.best
		c.Waves = !c.Waves
		s.try(c)
	}
}

// choices are both ways of a flag, if the points could tell them apart: a
// backward task has one KV head and is never split, nor are packed documents.
func (s *coreSearch) choices(both bool) []bool {
	if both && !s.backward {
		return []bool{false, true}
	}
	return []bool{false}
}

// grouped says whether query heads share KV heads in any of the points.
func (s *coreSearch) grouped() bool {
	return slices.ContainsFunc(s.points, func(p Point) bool {
		a, _ := calledFor(p.Shape)
		return a.qHeads != a.kvHeads
	})
}

// try fits a structure and keeps it if it is better by a margin; of equals the
// first stays. A structure is not fitted twice.
func (s *coreSearch) try(structure costmodel.AttentionCore) {
	bare := costmodel.AttentionCore{
		TileRows: structure.TileRows, TileKeys: structure.TileKeys, Packed: structure.Packed, SplitKV: structure.SplitKV, Waves: structure.Waves,
	}
	if slices.Contains(s.tried, bare) {
		return
	}
	s.tried = append(s.tried, bare)
	f := newCoreFit(s.start(structure), s.backward, s.prior != nil, s.points)
	if loss := f.solve(trialRounds); loss < s.loss-worthwhile {
		s.loss, s.best = loss, f.core
	}
}

// start is a structure with the coefficients that are expected of it.
func (s *coreSearch) start(structure costmodel.AttentionCore) costmodel.AttentionCore {
	c := expectedCore(s.dev, s.points, structure.TileRows, structure.TileKeys)
	if s.prior != nil {
		c = *s.prior
		c.Tile *= float64(structure.TileRows*structure.TileKeys) / float64(s.prior.TileRows*s.prior.TileKeys)
	}
	c.Parallel, c.TileRows, c.TileKeys = s.dev.Parallel, structure.TileRows, structure.TileKeys
	c.Packed, c.SplitKV, c.Waves = structure.Packed, structure.SplitKV, structure.Waves
	return c
}

const (
	// usualShare of the datasheet's peak is what attention kernels reach.
	usualShare = 0.5
	// usualBalance is FLOPs a byte of device memory where no datasheet says.
	usualBalance = 50
	// usualCache is the last cache where no datasheet says.
	usualCache = 32 << 20
)

// expectedCore is what is believed before any point is seen, from the device's
// datasheet; without one, from the best rate of the points.
func expectedCore(dev op.DeviceType, points []Point, rows, keys int) costmodel.AttentionCore {
	a, _ := calledFor(points[0].Shape)
	peak, perByte, cache := dev.Sheet.PeakPerS(a.dtype), 0.0, float64(dev.Sheet.L2)
	if peak == 0 {
		for _, p := range points {
			peak = max(peak, float64(p.Shape.Work().FLOPs)/p.Seconds/usualShare)
		}
	}
	if perByte = usualBalance / peak; dev.Sheet.MemoryPerS > 0 {
		perByte = 1 / dev.Sheet.MemoryPerS
	}
	if cache == 0 {
		cache = usualCache
	}
	flops := float64(points[0].Shape.Work().FLOPs) / a.pairs
	tile := flops * float64(rows*keys) / (usualShare * peak / float64(dev.Parallel))
	return costmodel.AttentionCore{
		Tile: tile, Task: tile, Alone: 1, Start: 2e-6, Tail: 0.2, Launch: 2e-6, Merge: 2e-6, Overlap: 5,
		Byte: perByte, Cached: 0.25, Cache: cache, Traffic: 1, Stream: 1, Memory: 3,
		SideLaunch: 2e-6, SideKV: 2, SideQ: 0.1, SideToken: 1e-7, Slow: 0.04, SlowAt: 4e-3, SlowNorm: 2.5,
	}
}

// wellSpread picks n points evenly over the order of their times; among equals
// their hash decides, so that the pick does not follow the input's order.
func wellSpread(points []Point, n int) []Point {
	points = slices.Clone(points)
	slices.SortFunc(points, func(a, b Point) int {
		return cmp.Or(cmp.Compare(a.Seconds, b.Seconds), cmp.Compare(a.rank, b.rank), cmp.Compare(a.Key, b.Key))
	})
	if len(points) <= n {
		return points
	}
	picked := make([]Point, n)
	for i := range picked {
		picked[i] = points[i*(len(points)-1)/(n-1)]
	}
	return picked
}
