package op

import "github.com/evenkeel/evenkeel/internal/units"

// KindLSEMerge merges two partial attentions.
const KindLSEMerge Kind = "lse_merge"

// LSEMerge adds one partial attention result (out, log-sum-exp) into another,
// in float32: what a ring does after every block but the first.
type LSEMerge struct {
	Tokens  units.Tokens `json:"tokens"`
	QHeads  int          `json:"q_heads"`
	HeadDim int          `json:"head_dim"`
}

var lseMergeSpec = Spec{
	Kind: KindLSEMerge, Class: Bandwidth, Measures: Time,
	Doc:     "adds a partial attention (out, log-sum-exp) of tokens x q_heads x head_dim into another, float32",
	Example: LSEMerge{1024, 8, 64},
}

// Kind implements Shape.
func (LSEMerge) Kind() Kind { return KindLSEMerge }

// Validate implements Shape.
func (l LSEMerge) Validate() error {
	for _, err := range []error{
		within(KindLSEMerge, "tokens", l.Tokens, maxTokens), within(KindLSEMerge, "q_heads", l.QHeads, maxHeads),
		within(KindLSEMerge, "head_dim", l.HeadDim, maxHeadDim),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// Variant implements Shape.
func (LSEMerge) Variant() Variant { return Variant{DType: F32} }

// Work implements Shape: reads both partials, writes one; two multiplications
// and an add an element.
func (l LSEMerge) Work() Work {
	rows := units.Bytes(l.Tokens) * units.Bytes(l.QHeads)
	one := 4 * rows * units.Bytes(l.HeadDim+1)
	return Work{FLOPs: units.FLOPs(3 * float64(rows) * float64(l.HeadDim)), Read: 2 * one, Write: one}
}

// Features implements Featured.
func (l LSEMerge) Features(parallel int) Features {
	return rowFeatures(l.Work(), l.Tokens*units.Tokens(l.QHeads), parallel)
}
