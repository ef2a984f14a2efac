package fit

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// Band is a range of sizes whose errors are judged together. Short calls are limited by
// launches and long ones by rates, so that one number for both would describe neither.
type Band struct {
	Name  string
	Below float64 // exclusive upper end, in the unit of the op's scale (see BandsOf); 0 is no end
}

// BandsOf lists the bands of an op, from small to large: tokens of the longest
// sequence for attention, tokens for layers, FLOPs for GEMM, bytes through
// memory for bandwidth ops and bytes of the message for collectives.
func BandsOf(k op.Kind) []Band {
	switch FamilyOf(k) {
	case FamilyAttention, FamilyLayer:
		return []Band{{"<4k", 4 << 10}, {"4k-16k", 16 << 10}, {"16k-64k", 64 << 10}, {">=64k", 0}}
	case FamilyGEMM:
		return []Band{{"<1 GFLOP", 1e9}, {"1-100 GFLOP", 100e9}, {">=100 GFLOP", 0}}
	case FamilyBandwidth:
		return []Band{{"<1 MiB", 1 << 20}, {"1-64 MiB", 64 << 20}, {">=64 MiB", 0}}
	case FamilyCollective:
		return []Band{{"<64 KiB", 64 << 10}, {"64 KiB-1 MiB", 1 << 20}, {"1-16 MiB", 16 << 20}, {">=16 MiB", 0}}
	}
	return nil
}

// BandOf is the name of the band that a shape lies in; "" for ops that measure
// no time.
func BandOf(s op.Shape) string {
	bands := BandsOf(s.Kind())
	if len(bands) == 0 {
		return ""
	}
	size := scaleOf(s)
	for _, b := range bands[:len(bands)-1] {
		if size < b.Below {
			return b.Name
		}
	}
	return bands[len(bands)-1].Name
}

// scaleOf is the size of a shape on the scale of its bands.
func scaleOf(s op.Shape) float64 {
	located, ok := s.(op.Located)
	if !ok {
		return 0
	}
	at := located.Coords()
	switch s.Kind() {
	case op.KindAttnFwd, op.KindAttnBwd:
		return max(at[0], at[1])
	case op.KindAttnVarlenFwd, op.KindAttnVarlenBwd:
		return at[1] // the longest sequence, whose length the blocks are cut to
	}
	switch FamilyOf(s.Kind()) {
	case FamilyGEMM:
		return float64(s.Work().FLOPs)
	case FamilyBandwidth:
		if spec, err := op.Lookup(s.Kind()); err == nil && spec.Class == op.Transfer {
			return at[0] // a copy reads and writes its bytes, which count once
		}
		return float64(s.Work().Bytes())
	}
	return at[0]
}

// bandPlace orders the bands of an op from small to large.
func bandPlace(k op.Kind, name string) int {
	return slices.IndexFunc(BandsOf(k), func(b Band) bool { return b.Name == name })
}

// allBands names the bands of all ops.
func allBands() []string {
	var names []string
	for _, spec := range op.Table() {
		for _, b := range BandsOf(spec.Kind) {
			if !slices.Contains(names, b.Name) {
				names = append(names, b.Name)
			}
		}
	}
	return names
}

func bandExists(name string) bool { return slices.Contains(allBands(), name) }
