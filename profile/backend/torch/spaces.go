package torch

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// extent of the shapes of a rank's device.
func (b *Backend) extent(r *rank) profile.Extent {
	e := profile.Extent{
		MaxLen: cpuLen, MaxHeads: cpuHeads, MaxWidth: cpuWidth, HeadDims: b.config.HeadDims,
		DType: op.F32, Kernels: kernels(r.greeting),
	}
	if r.greeting.Device.Kind == "cuda" {
		e.MaxLen, e.MaxHeads, e.MaxWidth, e.DType = gpuLen, gpuHeads, gpuWidth, op.BF16
	}
	if b.config.DType != "" {
		e.DType = b.config.DType
	}
	for _, k := range e.Kernels {
		if !r.greeting.Kernels[k].Grouped {
			e.Ungrouped = append(e.Ungrouped, k)
		}
	}
	return e
}

// computeSpaces are the families that the worker of a rank can run. Kernels
// without an op (such as one without a backward) are left out of its families.
func (b *Backend) computeSpaces(r *rank) []profile.Space {
	e := b.extent(r)
	spaces := slices.Concat(profile.ComputeSpaces(r.device.Name, e), profile.DocumentSpaces(r.device.Name, e), profile.LayerSpaces(r.device.Name, e))
	if r.greeting.Device.Kind == "cuda" {
		spaces = append(spaces, profile.CopySpaces(r.device.Name, gpuCopy)...)
	}
	return slices.DeleteFunc(able(spaces, r.greeting), func(s profile.Space) bool { return !r.hasKernel(s) })
}

// hasKernel says whether the attention kernel of a family offers its op.
func (r *rank) hasKernel(s profile.Space) bool {
	name := s.Make(make([]float64, s.Dims)).Variant().Kernel
	return name == "" || r.offers(name, s.Kind)
}

// offers says whether an attention kernel works here and has an op.
func (r *rank) offers(kernel string, k op.Kind) bool {
	return slices.Contains(r.greeting.Kernels[kernel].Ops, k)
}

func (b *Backend) groupSpaces(g group) []profile.Space {
	most := units.Bytes(cpuWire)
	if b.comm == "nccl" {
		most = gpuWire
	}
	spaces := profile.GroupSpaces(g.GroupType, most)
	if g.Ranks() > 2 { // two ranks have one pair, which the ring shift measures
		spaces = append(spaces, profile.PairSpaces(g.GroupType, most)...)
	}
	return able(spaces, b.ranks[g.sets[0][0]].greeting)
}

// The sizes at which memory and overlap are measured: two lengths give the
// slope of a layer's memory; the two sides of an overlap should last about as
// long as each other, which a planner's do.
var (
	layerLens    = []units.Tokens{2048, 4096}
	overlapLen   = units.Tokens(4096)
	overlapBytes = 64 * units.MiB
)

// layerHeads of head_dim 64 or 128 is the middle of the models people train.
const layerHeads = 16

// once lists what is measured once on a rank's device.
func (b *Backend) once(r *rank) []profile.Spot {
	shapes := []op.Shape{op.MemCapacity{}, op.MemReserve{}}
	for _, n := range layerLens {
		shapes = append(shapes, op.MemLayer{Layer: profile.LayerOf(n, layerHeads, b.extent(r))})
	}
	for _, k := range copied(r.greeting) {
		for _, m := range []op.Kind{op.KindH2D, op.KindD2H} {
			for _, side := range []op.Slowed{op.SlowedCompute, op.SlowedComm} {
				shapes = append(shapes, op.OverlapPair{Compute: k, Comm: m, Slowed: side, Tokens: overlapLen, Bytes: overlapBytes})
			}
		}
	}
	if b.pairOf(r) != nil {
		shapes = append(shapes, besideMessages()...)
	}
	return spots(r.device.Name, shapes, r.greeting)
}

// copied are the ops that are measured beside copies between host and device:
// none on a processor, which has no engine that copies.
func copied(g greeting) []op.Kind {
	if g.Device.Kind != "cuda" {
		return nil
	}
	return []op.Kind{op.KindAttnFwd, op.KindAttnBwd, op.KindGEMM}
}

// spots keeps the shapes whose op a worker offers.
func spots(on string, shapes []op.Shape, g greeting) []profile.Spot {
	var list []profile.Spot
	for _, s := range shapes {
		if slices.Contains(g.Ops, s.Kind()) {
			list = append(list, profile.NewSpot(on, s))
		}
	}
	return list
}
