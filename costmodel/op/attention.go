package op

import (
	"fmt"
	"math"
	"strings"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Mask is the part of the (query, key) plane that an attention block covers.
type Mask string

// Every mask is cut into these two; rectangular causal blocks exist nowhere.
const (
	Full Mask = "full" // q_len x kv_len rectangle, nothing masked
	Diag Mask = "diag" // square, query i sees keys 0..i
)

// Attention is one attention block on one rank, with log-sum-exp output.
type Attention struct {
	Mask    Mask         `json:"mask"`
	QLen    units.Tokens `json:"q_len"`    // tokens
	KVLen   units.Tokens `json:"kv_len"`   // tokens; equals q_len under diag
	QHeads  int          `json:"q_heads"`  // on this rank
	KVHeads int          `json:"kv_heads"` // on this rank; fewer than q_heads is GQA
	HeadDim int          `json:"head_dim"`
	DType   DType        `json:"dtype"`
	// Kernel names the implementation, such as fa2 or fa3: a word of a-z, 0-9
	// and _; empty where a worker's default is meant or there is only one.
	Kernel string `json:"kernel,omitzero"`
	// Batch is how many equal blocks one call computes; 0 means one, so that a
	// shape has one way to be written.
	Batch int `json:"batch,omitzero"`
	// Window lets query i of a diag block see only the last so many keys, its
	// own included; 0 means all of them.
	Window units.Tokens `json:"window,omitzero"`
}

// Blocks is the number of blocks in a call, at least one.
func (a Attention) Blocks() int { return max(1, a.Batch) }

// Kinds of attention.
const (
	KindAttnFwd Kind = "attn_fwd"
	KindAttnBwd Kind = "attn_bwd"
)

// AttnFwd is the forward pass: out and log-sum-exp from q, k, v.
type AttnFwd struct{ Attention }

// AttnBwd is the backward pass without its forward: dq, dk, dv from q, k, v,
// out, dout and the global log-sum-exp.
type AttnBwd struct{ Attention }

var attnFwdSpec = Spec{
	Kind: KindAttnFwd, Class: Compute, Measures: Time,
	Doc:     "attention forward of one FULL rectangle or DIAG square, with log-sum-exp",
	Example: AttnFwd{Attention{Mask: Full, QLen: 1024, KVLen: 1024, QHeads: 8, KVHeads: 2, HeadDim: 64, DType: F32}},
}

var attnBwdSpec = Spec{
	Kind: KindAttnBwd, Class: Compute, Measures: Time,
	Doc:     "attention backward of one block from the global log-sum-exp, timed without the forward",
	Example: AttnBwd{Attention{Mask: Full, QLen: 1024, KVLen: 1024, QHeads: 8, KVHeads: 2, HeadDim: 64, DType: F32}},
}

// Kind implements Shape.
func (AttnFwd) Kind() Kind { return KindAttnFwd }

// Kind implements Shape.
func (AttnBwd) Kind() Kind { return KindAttnBwd }

// Validate implements Shape.
func (a AttnFwd) Validate() error { return a.validate(KindAttnFwd) }

// Validate implements Shape.
func (a AttnBwd) Validate() error { return a.validate(KindAttnBwd) }

func (a Attention) validate(k Kind) error {
	if a.Mask != Full && a.Mask != Diag {
		return &AxisError{k, "mask", fmt.Sprintf("%q: want full or diag", string(a.Mask))}
	}
	for _, err := range []error{
		within(k, "q_len", a.QLen, maxTokens), within(k, "kv_len", a.KVLen, maxTokens),
		within(k, "q_heads", a.QHeads, maxHeads), within(k, "kv_heads", a.KVHeads, maxHeads),
		within(k, "head_dim", a.HeadDim, maxHeadDim), a.DType.validate(k), kernelWord(k, a.Kernel),
	} {
		if err != nil {
			return err
		}
	}
	switch {
	case a.Mask == Diag && a.QLen != a.KVLen:
		return &AxisError{k, "kv_len", fmt.Sprintf("%d: a diag block is square, q_len is %d", int64(a.KVLen), int64(a.QLen))}
	case a.KVHeads > a.QHeads:
		return &AxisError{k, "kv_heads", fmt.Sprintf("%d: more than q_heads %d", a.KVHeads, a.QHeads)}
	case a.Batch < 0 || a.Batch == 1 || a.Batch > maxBatch:
		return &AxisError{k, "batch", fmt.Sprintf("%d: want 2 to %d, or leave a batch of one out", a.Batch, maxBatch)}
	case a.Window < 0 || a.Window > 0 && a.Mask != Diag:
		return &AxisError{k, "window", fmt.Sprintf("%d: a window is a positive number of tokens and narrows a diag block only", int64(a.Window))}
	}
	return nil
}

// Variant implements Shape.
func (a Attention) Variant() Variant {
	return Variant{Mask: a.Mask, HeadDim: a.HeadDim, DType: a.DType, Kernel: a.Kernel, Window: a.Window}
}

// kernelWord keeps kernel names short and free of what documents and file names
// give a meaning to.
func kernelWord(k Kind, name string) error {
	bad := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' }
	if len(name) > 48 || strings.ContainsFunc(name, bad) {
		return &AxisError{k, "kernel", fmt.Sprintf("%q: want at most 48 letters a-z, digits and _", name)}
	}
	return nil
}

// Pairs counts the unmasked (query, key) pairs of one head of one block.
func (a Attention) Pairs() float64 {
	if a.Mask == Diag {
		seen := float64(a.QLen) * float64(a.QLen+1) / 2
		if a.Window > 0 && a.Window < a.QLen {
			hidden := float64(a.QLen - a.Window)
			seen -= hidden * (hidden + 1) / 2
		}
		return seen
	}
	return float64(a.QLen) * float64(a.KVLen)
}

// forwardFLOPs is 4*q_heads*head_dim*pairs: two multiply-adds a pair and
// element, one for q·k and one for p·v (Dao et al. 2022, counted under the mask).
func (a Attention) forwardFLOPs() units.FLOPs {
	return units.FLOPs(4 * float64(a.Blocks()*a.QHeads) * float64(a.HeadDim) * a.Pairs())
}

func (a Attention) qBytes() units.Bytes {
	return units.Bytes(a.Blocks()) * units.Bytes(a.QLen) * units.Bytes(a.QHeads*a.HeadDim) * a.DType.Size()
}

func (a Attention) kvBytes() units.Bytes {
	return 2 * units.Bytes(a.Blocks()) * units.Bytes(a.KVLen) * units.Bytes(a.KVHeads*a.HeadDim) * a.DType.Size()
}

// lseBytes: one float32 a query row and head.
func (a Attention) lseBytes() units.Bytes {
	return 4 * units.Bytes(a.Blocks()) * units.Bytes(a.QLen) * units.Bytes(a.QHeads)
}

// Work implements Shape: reads q, k, v; writes out (the shape of q) and lse.
func (a AttnFwd) Work() Work {
	return Work{FLOPs: a.forwardFLOPs(), Read: a.qBytes() + a.kvBytes(), Write: a.qBytes() + a.lseBytes()}
}

// Work implements Shape: five matrix products where the forward has two, hence
// 2.5x its FLOPs; reads q, k, v, out, dout, lse; writes dq, dk, dv.
func (a AttnBwd) Work() Work {
	return Work{
		FLOPs: 2.5 * a.forwardFLOPs(),
		Read:  3*a.qBytes() + a.kvBytes() + a.lseBytes(), Write: a.qBytes() + a.kvBytes(),
	}
}

// rowTile is the number of rows one task of an attention kernel handles; every
// kernel we know of takes 64 to 256 of them.
const rowTile = 64

// Features implements Featured. A task is one tile of query rows of a head
// against all its keys.
func (a AttnFwd) Features(parallel int) Features {
	return a.features(a.Work(), parallel, a.Blocks()*a.QHeads, float64(a.QLen))
}

// Features implements Featured. A task is one tile of keys of a KV head against
// the queries of all heads that share it, over which dk and dv are summed.
func (a AttnBwd) Features(parallel int) Features {
	return a.features(a.Work(), parallel, a.Blocks()*a.KVHeads, float64(a.KVLen))
}

// features of a block whose tasks are the tiles of `length` rows of each of
// `heads` heads.
func (a Attention) features(w Work, parallel, heads int, length float64) Features {
	f := Features{
		FLOPs: float64(w.FLOPs) / float64(parallel),
		Rows:  float64(a.QLen) * float64(a.Blocks()*a.QHeads) / float64(parallel),
		Bytes: float64(w.Bytes()),
	}
	if a.Mask == Diag {
		// Tasks shrink along the diagonal and the longest start first, which
		// evens them out unless one alone is longer than everybody's share.
		f.Tail = max(0, a.longestTask(w, heads)-f.FLOPs) * unshared(parallel)
	} else {
		f.Tail = tail(heads, length, float64(w.FLOPs), parallel)
	}
	f.FLOPs += f.Tail
	return f
}

// longestTask is the FLOPs of a DIAG block's last tile in one of its heads.
func (a Attention) longestTask(w Work, heads int) float64 {
	return float64(w.FLOPs) / float64(heads) * min(1, 2*rowTile/(float64(a.QLen)+1))
}

// tail is the work that the busiest of the parallel units does beyond its even
// share when the rows of each head are cut into tiles and whole tiles are handed
// to whoever is free, full ones first and the rests of the heads after them.
func tail(heads int, length, flops float64, parallel int) float64 {
	tiles, rest := math.Floor(length/rowTile), math.Mod(length, rowTile)
	perRow := flops / float64(heads) / length
	count, units := float64(heads)*tiles, float64(parallel)
	waves := math.Floor(count / units)
	// Some units have one full tile more than the others; the rests go to
	// whichever of the two kinds is free earlier.
	more := math.Mod(count, units)
	kinds := [2]struct{ size, rows float64 }{{units - more, waves * rowTile}, {more, (waves + 1) * rowTile}}
	busiest := kinds[0].rows
	if more > 0 {
		busiest = kinds[1].rows
	}
	for left := float64(heads); rest > 0 && left > 0; {
		k := &kinds[0]
		if more > 0 && kinds[1].rows < kinds[0].rows {
			k = &kinds[1]
		}
		left -= k.size
		k.rows += rest
		busiest = max(busiest, k.rows)
	}
	return max(0, busiest*perRow-flops/units) * unshared(parallel)
}

// unshared is 0 for a single unit, which has nobody to be uneven with.
func unshared(parallel int) float64 {
	if parallel == 1 {
		return 0
	}
	return 1
}
