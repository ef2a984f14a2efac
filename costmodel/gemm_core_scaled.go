package costmodel

import "github.com/evenkeel/evenkeel/costmodel/op"

// Scaled carries the core of one device type over to another by the ratios of
// their datasheets: arithmetic follows the peak rate, bytes the memory's rate,
// the cache its size. Latencies, the menu and the odds stay. A figure that
// either sheet lacks leaves its coefficients as they are.
func (c *GEMMCore) Scaled(from, to op.DeviceType) *GEMMCore {
	s := *c
	s.Tiles = append([]GEMMTile(nil), c.Tiles...)
	s.Parallel = to.Parallel
	peak := over(to.Sheet.PeakPerS(c.DType), from.Sheet.PeakPerS(c.DType))
	memory := over(to.Sheet.MemoryPerS, from.Sheet.MemoryPerS)
	s.PerS *= peak
	for _, rate := range []*float64{&s.MemPerS, &s.VPerS} {
		*rate *= memory
	}
	for _, cost := range []*float64{&s.SplitByte, &s.Cast} {
		*cost /= memory
	}
	// A tile's bytes pass one SM: they share the rate that grew with memory.
	for _, cost := range []*float64{&s.Load, &s.Store} {
		*cost *= over(float64(to.Parallel), float64(from.Parallel)) / memory
	}
	s.L2 *= over(float64(to.Sheet.L2), float64(from.Sheet.L2))
	return &s
}
