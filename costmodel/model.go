package costmodel

import (
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Model is the shape of a decoder-only transformer: pre-norm blocks of grouped
// attention and an MLP.
type Model struct {
	Name    string `json:"name"` // model_type of the configuration
	Layers  int    `json:"layers"`
	Hidden  int    `json:"hidden"`   // width of the residual stream
	FFN     int    `json:"ffn"`      // width of the MLP
	QHeads  int    `json:"q_heads"`  // query heads
	KVHeads int    `json:"kv_heads"` // key and value heads; fewer is GQA
	HeadDim int    `json:"head_dim"`
	Vocab   int    `json:"vocab"`
	// TiedEmbeddings: the output projection is the input embedding.
	TiedEmbeddings bool `json:"tied_embeddings"`
	// GatedMLP: gate, up and down projections; without, only up and down.
	GatedMLP bool `json:"gated_mlp"`
	// Activation of the MLP (silu, gelu, relu) where it is not the one that was
	// measured: silu with a gate, gelu without.
	Activation string `json:"activation,omitzero"`
	QKVBias    bool   `json:"qkv_bias,omitzero"`
	OutBias    bool   `json:"out_bias,omitzero"` // of the attention's output projection
	MLPBias    bool   `json:"mlp_bias,omitzero"`
	VocabBias  bool   `json:"vocab_bias,omitzero"` // of the projection to the vocabulary
	QKNorm     bool   `json:"qk_norm,omitzero"`    // RMSNorm of each query and key head
	// LayerNorm: norms subtract the mean and have a bias beside the gain;
	// without, they are RMSNorm. Either streams its rows in and out once and is
	// charged by the law of norm.
	LayerNorm bool `json:"layer_norm,omitzero"`
	// SharedNorm: attention and MLP read the output of one norm and are added
	// to the residual together, as in GPT-J.
	SharedNorm bool `json:"shared_norm,omitzero"`
	// PositionRows is the length of a learned table of positions, which is added
	// to the embedding; 0 where positions are rotary.
	PositionRows int `json:"position_rows,omitzero"`
	// RotaryDim is how many elements of each head rotary positions turn; 0 is
	// all of them.
	RotaryDim int `json:"rotary_dim,omitzero"`
	// MaxLen is the longest sequence for which full causal attention is what
	// the model computes, 0 if there is no such limit: a configuration with an
	// active sliding window is modelled up to the window, one with learned
	// positions as far as these go.
	MaxLen units.Tokens `json:"max_len_tokens,omitzero"`
}

func (m Model) qWidth() int  { return m.QHeads * m.HeadDim }
func (m Model) kvWidth() int { return m.KVHeads * m.HeadDim }

// qkvWidth is the number of outputs of the fused query, key and value projection.
func (m Model) qkvWidth() int { return m.qWidth() + 2*m.kvWidth() }

// GateUp is the number of output features of the MLP's first projection: 2 FFN with a
// gate, else FFN.
func (m Model) GateUp() int {
	if m.GatedMLP {
		return 2 * m.FFN
	}
	return m.FFN
}

// Norms is the number of norms in a layer, without those of query and key heads.
func (m Model) Norms() int {
	if m.SharedNorm {
		return 1
	}
	return 2
}

// Rotary is the number of elements per token of queries (q) and of keys (k) that rotary
// position embedding rotates; 0 where positions are learned.
func (m Model) Rotary() (q, k int) {
	switch {
	case m.PositionRows > 0:
		return 0, 0
	case m.RotaryDim > 0:
		return m.QHeads * m.RotaryDim, m.KVHeads * m.RotaryDim
	}
	return m.qWidth(), m.kvWidth()
}

// Activated is the element-wise op between the projections of the MLP, on the given
// number of tokens.
func (m Model) Activated(tokens units.Tokens, d op.DType) op.Shape {
	r := op.Rowwise{Tokens: tokens, Width: m.FFN, DType: d}
	if m.GatedMLP {
		return op.SwiGLU{Rowwise: r}
	}
	return op.GELU{Rowwise: r}
}

// ChargedAs says, in a sentence for the user, which op's law stands in for the MLP's
// activation function; it is empty where the activation has a law of its own. An op that
// reads and writes the same operands takes the same time where memory bandwidth limits
// it, as on a GPU. Where arithmetic limits it, as on a CPU, it may not.
func (m Model) ChargedAs() string {
	if m.Activation == "" {
		return ""
	}
	kind := m.Activated(1, op.F32).Kind()
	return fmt.Sprintf("the MLP's %s was not measured and is charged by the law of %s, which reads and writes as much", m.Activation, kind)
}

// tensorRow is the number of elements that rows of a matrix are a multiple of where tensor
// cores read them: 16 bytes of bf16.
const tensorRow = 8

// Ragged says, in a sentence for the user, which widths tensor cores are slow at; it is
// empty where there is none. On 80 multiprocessors of an H200 (results/evidence/h200)
// products with such rows reached 53 to 140 TFLOP/s, one without 422.
func (m Model) Ragged() string {
	var odd []string
	for _, w := range []struct {
		name  string
		value int
	}{{"vocabulary", m.Vocab}, {"hidden", m.Hidden}, {"MLP", m.FFN}} {
		if w.value%tensorRow != 0 {
			odd = append(odd, fmt.Sprintf("%s width %d", w.name, w.value))
		}
	}
	if len(odd) == 0 {
		return ""
	}
	return fmt.Sprintf("%s: no multiple of %d; tensor cores take three to eight times as long for such products as they are charged here (measured on an H200 in bf16); pad it to a multiple of 64", strings.Join(odd, ", "), tensorRow)
}

// HeadNorms is the number of elements per token of queries (q) and of keys (k) that are
// normed head by head (QK norm); 0 without QK norm.
func (m Model) HeadNorms() (q, k int) {
	if !m.QKNorm {
		return 0, 0
	}
	return m.qWidth(), m.kvWidth()
}

// likeLayer says whether a layer is built as an op.Layer, whose measured memory
// then holds for it; biases keep nothing.
func (m Model) likeLayer() bool { return m.GatedMLP && !m.LayerNorm && !m.SharedNorm && !m.QKNorm }

// keptByNorms is how many elements one layer keeps a token around its norms: its
// input, the residual after attention and both norms' outputs (4h); a shared norm
// has one output and no residual between (2h). Norms of heads keep their inputs;
// their outputs are the queries and keys that the attention keeps.
func (m Model) keptByNorms() int {
	q, k := m.HeadNorms()
	return 2*m.Norms()*m.Hidden + q + k
}

// keptStatistics is the float32 that one layer keeps a token of its norms: the
// reciprocal root of each, those of heads one a head, and of LayerNorm its mean.
func (m Model) keptStatistics() units.Bytes {
	kept := 4 * m.Norms()
	if m.LayerNorm {
		kept *= 2
	}
	if m.QKNorm {
		kept += 4 * (m.QHeads + m.KVHeads)
	}
	return units.Bytes(kept)
}

// normParams is the number of parameters of one norm: gains, and biases.
func (m Model) normParams() int64 {
	if m.LayerNorm {
		return 2 * int64(m.Hidden)
	}
	return int64(m.Hidden)
}

// LayerParams is the number of parameters of one layer.
func (m Model) LayerParams() int64 {
	h, q, qkv := int64(m.Hidden), int64(m.qWidth()), int64(m.qkvWidth())
	up, f := int64(m.GateUp()), int64(m.FFN)
	n := h*qkv + q*h + h*up + f*h + int64(m.Norms())*m.normParams()
	for _, bias := range []struct {
		there  bool
		params int64
	}{{m.QKVBias, qkv}, {m.OutBias, h}, {m.MLPBias, up + h}, {m.QKNorm, 2 * int64(m.HeadDim)}} {
		if bias.there {
			n += bias.params
		}
	}
	return n
}

// TableParams is the number of parameters of the input embedding, and of the
// output projection where it is another matrix.
func (m Model) TableParams() int64 { return int64(m.Vocab) * int64(m.Hidden) }

// Params is the exact number of parameters.
func (m Model) Params() int64 {
	n := int64(m.Layers)*m.LayerParams() + m.normParams() + m.TableParams()
	n += int64(m.PositionRows) * int64(m.Hidden)
	if !m.TiedEmbeddings {
		n += m.TableParams()
	}
	if m.VocabBias {
		n += int64(m.Vocab)
	}
	return n
}

// Validate reports the first field that is missing, out of range or at odds
// with another.
func (m Model) Validate() error {
	for _, f := range []struct {
		name  string
		value int
		most  int
	}{
		{"layers", m.Layers, maxLayers},
		{"hidden", m.Hidden, maxWidth},
		{"ffn", m.FFN, maxWidth},
		{"q_heads", m.QHeads, maxHeads},
		{"kv_heads", m.KVHeads, maxHeads},
		{"head_dim", m.HeadDim, maxHeadDim},
		{"vocab", m.Vocab, maxWidth},
	} {
		if f.value < 1 || f.value > f.most {
			return fmt.Errorf("%s: %d: want 1 to %d", f.name, f.value, f.most)
		}
	}
	switch {
	case m.QHeads%m.KVHeads != 0:
		return fmt.Errorf("kv_heads: %d: must divide q_heads %d", m.KVHeads, m.QHeads)
	case m.PositionRows < 0 || m.PositionRows > maxWidth:
		return fmt.Errorf("position_rows: %d: want 0 to %d", m.PositionRows, maxWidth)
	case m.RotaryDim < 0 || m.RotaryDim > m.HeadDim:
		return fmt.Errorf("rotary_dim: %d: want at most head_dim %d", m.RotaryDim, m.HeadDim)
	case m.Activation != "" && !slices.Contains(activations(), m.Activation):
		return fmt.Errorf("activation: %q: want %s", m.Activation, strings.Join(activations(), ", "))
	case m.MaxLen < 0:
		return fmt.Errorf("max_len_tokens: %d: must not be negative", int64(m.MaxLen))
	case m.PositionRows > 0 && (m.MaxLen == 0 || int64(m.MaxLen) > int64(m.PositionRows)):
		return fmt.Errorf("max_len_tokens: %d: want 1 to position_rows %d, for learned positions end there", int64(m.MaxLen), m.PositionRows)
	case 2*m.FFN > maxWidth || m.qkvWidth() > maxWidth:
		return fmt.Errorf("ffn, q_heads: a projection with more than %d outputs", maxWidth)
	case m.Params() > maxParams:
		return fmt.Errorf("layers, hidden, ffn, vocab: %.3g parameters: want at most %.3g; make one of them smaller", float64(m.Params()), float64(maxParams))
	}
	return nil
}

// activations lists those that an MLP may have; the forms of GELU are one.
func activations() []string { return []string{"silu", "gelu", "relu"} }

// Limits of a model: far above any published one, low enough that op shapes
// are valid, parameter counts stay inside int64, and of as many as are allowed the bytes
// of parameters, gradients and optimizer too. Tokens multiply what those of activations
// are: see MemoryModel.
const (
	maxLayers  = 1 << 12
	maxWidth   = 1 << 24
	maxHeads   = 1 << 12
	maxHeadDim = 1 << 12
	maxParams  = 1 << 47
)
