package op

import (
	"fmt"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Varlen is one call over packed documents: each is a DIAG square of its own
// and no query sees another document's keys.
type Varlen struct {
	SeqLens []units.Tokens `json:"seq_lens"` // tokens of each document, 1 to 64 of them, in the order in which they are packed
	QHeads  int            `json:"q_heads"`  // on this rank
	KVHeads int            `json:"kv_heads"` // on this rank; fewer than q_heads is GQA
	HeadDim int            `json:"head_dim"`
	DType   DType          `json:"dtype"`
	Kernel  string         `json:"kernel,omitzero"` // as Attention's
}

// Kinds of attention over packed documents.
const (
	KindAttnVarlenFwd Kind = "attn_varlen_fwd"
	KindAttnVarlenBwd Kind = "attn_varlen_bwd"
)

// AttnVarlenFwd is the forward pass over packed documents.
type AttnVarlenFwd struct{ Varlen }

// AttnVarlenBwd is the backward pass over packed documents without its forward.
type AttnVarlenBwd struct{ Varlen }

// maxDocuments keeps a shape short enough to write into every line of a recording.
const maxDocuments = 64

var varlenExample = Varlen{SeqLens: []units.Tokens{512, 384, 128}, QHeads: 8, KVHeads: 2, HeadDim: 64, DType: F32}

var attnVarlenFwdSpec = Spec{
	Kind: KindAttnVarlenFwd, Class: Compute, Measures: Time,
	Doc:     "attention forward of packed documents, each causal on its own, with log-sum-exp",
	Example: AttnVarlenFwd{varlenExample},
}

var attnVarlenBwdSpec = Spec{
	Kind: KindAttnVarlenBwd, Class: Compute, Measures: Time,
	Doc:     "attention backward of packed documents, each causal on its own, timed without the forward",
	Example: AttnVarlenBwd{varlenExample},
}

// Kind implements Shape.
func (AttnVarlenFwd) Kind() Kind { return KindAttnVarlenFwd }

// Kind implements Shape.
func (AttnVarlenBwd) Kind() Kind { return KindAttnVarlenBwd }

// Validate implements Shape.
func (v AttnVarlenFwd) Validate() error { return v.validate(KindAttnVarlenFwd) }

// Validate implements Shape.
func (v AttnVarlenBwd) Validate() error { return v.validate(KindAttnVarlenBwd) }

func (v Varlen) validate(k Kind) error {
	if n := len(v.SeqLens); n < 1 || n > maxDocuments {
		return &AxisError{k, "seq_lens", fmt.Sprintf("%d documents: want 1 to %d", n, maxDocuments)}
	}
	for i, n := range v.SeqLens {
		if err := within(k, fmt.Sprintf("seq_lens[%d]", i), n, maxTokens); err != nil {
			return err
		}
	}
	if err := within(k, "seq_lens", v.Tokens(), maxTokens); err != nil {
		return err
	}
	return v.block(v.Longest()).validate(k)
}

// Variant implements Shape. The kind tells that the mask is causal.
func (v Varlen) Variant() Variant {
	return Variant{HeadDim: v.HeadDim, DType: v.DType, Kernel: v.Kernel}
}

// Tokens is the length of the packed sequence.
func (v Varlen) Tokens() units.Tokens {
	var sum units.Tokens
	for _, n := range v.SeqLens {
		sum += n
	}
	return sum
}

// Longest is the length of the longest document; 0 without any.
func (v Varlen) Longest() units.Tokens {
	var most units.Tokens
	for _, n := range v.SeqLens {
		most = max(most, n)
	}
	return most
}

// Pairs counts the unmasked (query, key) pairs of one head over all documents.
func (v Varlen) Pairs() float64 {
	var sum float64
	for _, n := range v.SeqLens {
		sum += v.block(n).Pairs()
	}
	return sum
}

// Documents is the call of causal blocks as one over packed documents, one for every block
// of the batch: to a kernel of packed documents both are the same call. It is false where
// none does the same: under a full mask or a window, and of more blocks than documents
// fit into a shape.
func (a Attention) Documents() (Varlen, bool) {
	if a.Mask != Diag || a.Window > 0 || a.Blocks() > maxDocuments {
		return Varlen{}, false
	}
	v := Varlen{SeqLens: make([]units.Tokens, a.Blocks()), QHeads: a.QHeads, KVHeads: a.KVHeads, HeadDim: a.HeadDim, DType: a.DType, Kernel: a.Kernel}
	for i := range v.SeqLens {
		v.SeqLens[i] = a.QLen
	}
	return v, true
}

// block is a document of n tokens as an attention block.
func (v Varlen) block(n units.Tokens) Attention {
	return Attention{
		Mask: Diag, QLen: n, KVLen: n, QHeads: v.QHeads, KVHeads: v.KVHeads,
		HeadDim: v.HeadDim, DType: v.DType, Kernel: v.Kernel,
	}
}

// sum adds up the work of every document.
func (v Varlen) sum(work func(Attention) Work) Work {
	var all Work
	for _, n := range v.SeqLens {
		w := work(v.block(n))
		all.FLOPs += w.FLOPs
		all.Read += w.Read
		all.Write += w.Write
	}
	return all
}

func (v Varlen) forward() Work { return v.sum(func(a Attention) Work { return AttnFwd{a}.Work() }) }

func (v Varlen) backward() Work { return v.sum(func(a Attention) Work { return AttnBwd{a}.Work() }) }

// Work implements Shape: the sum over the documents.
func (v AttnVarlenFwd) Work() Work { return v.forward() }

// Work implements Shape: the sum over the documents.
func (v AttnVarlenBwd) Work() Work { return v.backward() }

// Features implements Featured. Tasks are as AttnFwd's, of all documents.
func (v AttnVarlenFwd) Features(parallel int) Features {
	w := AttnFwd{v.block(v.Longest())}.Work()
	return v.features(v.forward(), v.block(v.Longest()).longestTask(w, v.QHeads), parallel)
}

// Features implements Featured. Tasks are as AttnBwd's, of all documents.
func (v AttnVarlenBwd) Features(parallel int) Features {
	w := AttnBwd{v.block(v.Longest())}.Work()
	return v.features(v.backward(), v.block(v.Longest()).longestTask(w, v.KVHeads), parallel)
}

// features of packed documents whose longest task, the last tile of the longest
// document, takes `longest` FLOPs. As in a single DIAG block the many shorter
// tasks even out unless that one is longer than everybody's share.
func (v Varlen) features(w Work, longest float64, parallel int) Features {
	f := Features{
		FLOPs: float64(w.FLOPs) / float64(parallel),
		Rows:  float64(v.Tokens()) * float64(v.QHeads) / float64(parallel),
		Bytes: float64(w.Bytes()),
	}
	f.Tail = max(0, longest-f.FLOPs) * unshared(parallel)
	f.FLOPs += f.Tail
	return f
}
