package costmodel

import (
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/internal/units"
)

// family is what the configurations of one model_type share and do not say.
type family struct {
	name  string // model_type
	class string // what `architectures` must name
	keys  func(c *hfConfig) keys

	gated     bool   // MLP with a gate
	act       string // activation where the configuration names none
	layerNorm bool
	tied      bool // unless tie_word_embeddings says otherwise
	windowed  bool // sliding_window counts
	absent    sizes
	// rest fills in what only this family has: biases, positions, odd heads.
	rest func(c *hfConfig, m *Model)
}

// sizes are what a class takes where the configuration does not have the key at all; null is
// another matter. 0: what follows from other keys, or for a window that there is none.
type sizes struct{ kvHeads, headDim, window, fullLayers, rotaryDim int }

// families lists the model types we know. What each computes, and the defaults
// of keys that it may leave out, is as its class in Hugging Face transformers
// has it; the parameter counts of published weights check every entry.
func families() []family {
	return []family{
		{name: "gemma", class: "GemmaForCausalLM", keys: usualKeys, gated: true, act: "gelu", tied: true, absent: sizes{kvHeads: 16, headDim: 256}, rest: asGemma},
		{name: "glm", class: "GlmForCausalLM", keys: usualKeys, gated: true, act: "silu", absent: sizes{kvHeads: 2, headDim: 128}, rest: asGLM},
		{name: "gpt2", class: "GPT2LMHeadModel", keys: gptKeys, act: "gelu", layerNorm: true, tied: true, rest: asGPT2},
		{name: "gpt_bigcode", class: "GPTBigCodeForCausalLM", keys: gptKeys, act: "gelu", layerNorm: true, tied: true, rest: asBigCode},
		{name: "gpt_neox", class: "GPTNeoXForCausalLM", keys: usualKeys, act: "gelu", layerNorm: true, rest: asNeoX},
		{name: "gptj", class: "GPTJForCausalLM", keys: gptKeys, act: "gelu", layerNorm: true, absent: sizes{rotaryDim: 64}, rest: asGPTJ},
		{name: "granite", class: "GraniteForCausalLM", keys: usualKeys, gated: true, act: "silu", rest: asLlama},
		{name: "llama", class: "LlamaForCausalLM", keys: usualKeys, gated: true, act: "silu", rest: asLlama},
		{name: "mistral", class: "MistralForCausalLM", keys: usualKeys, gated: true, act: "silu", windowed: true, absent: sizes{kvHeads: 8, window: 4096}, rest: asIs},
		{name: "opt", class: "OPTForCausalLM", keys: optKeys, act: "relu", layerNorm: true, tied: true, rest: asOPT},
		{name: "phi", class: "PhiForCausalLM", keys: usualKeys, act: "gelu", layerNorm: true, rest: asPhi},
		{name: "phi3", class: "Phi3ForCausalLM", keys: usualKeys, gated: true, act: "silu", windowed: true, rest: asPhi3},
		{name: "qwen2", class: "Qwen2ForCausalLM", keys: usualKeys, gated: true, act: "silu", windowed: true, absent: sizes{kvHeads: 32, window: 4096, fullLayers: 28}, rest: asQwen2},
		{name: "qwen3", class: "Qwen3ForCausalLM", keys: usualKeys, gated: true, act: "silu", windowed: true, absent: sizes{kvHeads: 32, headDim: 128, window: 4096, fullLayers: 28}, rest: asQwen3},
		{name: "stablelm", class: "StableLmForCausalLM", keys: usualKeys, gated: true, act: "silu", layerNorm: true, absent: sizes{kvHeads: 32}, rest: asStableLM},
		{name: "starcoder2", class: "Starcoder2ForCausalLM", keys: usualKeys, act: "gelu", layerNorm: true, tied: true, windowed: true, absent: sizes{kvHeads: 2}, rest: asStarcoder2},
	}
}

// size is one key of a configuration with its range.
type size struct {
	key      string
	n        *int
	most     int
	required bool
}

// keys are the sizes under the names that a family has for them.
type keys struct {
	layers, hidden, ffn, heads, vocab size
	positions                         size // of a learned table; a zero size otherwise
}

func usualKeys(c *hfConfig) keys {
	return keys{
		layers: size{"num_hidden_layers", c.Layers, maxLayers, true},
		hidden: size{"hidden_size", c.Hidden, maxWidth, true},
		ffn:    size{"intermediate_size", c.FFN, maxWidth / 2, true},
		heads:  size{"num_attention_heads", c.QHeads, maxHeads, true},
		vocab:  size{"vocab_size", c.Vocab, maxWidth, true},
	}
}

// gptKeys: an n_inner of null is four times n_embd.
func gptKeys(c *hfConfig) keys {
	return keys{
		layers:    size{"n_layer", c.NLayer, maxLayers, true},
		hidden:    size{"n_embd", c.NEmbd, maxWidth / 8, true},
		ffn:       size{"n_inner", c.NInner, maxWidth / 2, false},
		heads:     size{"n_head", c.NHead, maxHeads, true},
		vocab:     size{"vocab_size", c.Vocab, maxWidth, true},
		positions: size{"n_positions", c.NPositions, maxWidth, c.ModelType != "gptj"},
	}
}

func optKeys(c *hfConfig) keys {
	k := usualKeys(c)
	k.ffn = size{"ffn_dim", c.FFNDim, maxWidth / 2, true}
	k.positions = size{"max_position_embeddings", c.Positions, maxWidth / 2, true}
	return k
}

// biased sets the biases of every linear layer of a block.
func (m *Model) biased(on bool) { m.QKVBias, m.OutBias, m.MLPBias = on, on, on }

// learned gives a model a table of positions with some rows that no token uses.
func (m *Model) learned(positions, unused int) {
	m.PositionRows, m.MaxLen = positions+unused, units.Tokens(positions)
}

// partlyRotary turns a share of each head; transformers rounds down.
func (m *Model) partlyRotary(share float64) {
	if share < 1 {
		m.RotaryDim = max(1, int(float64(m.HeadDim)*share))
	}
}

// asIs is for families with nothing of their own.
func asIs(*hfConfig, *Model) {}

// asGemma: heads are 256 wide unless head_dim says otherwise.
func asGemma(c *hfConfig, m *Model) {
	m.HeadDim = or(c.HeadDim, 256)
	m.QKVBias = or(c.AttentionBias, false)
	m.OutBias = m.QKVBias
}

// asGLM (GLM-4-9B): Llama with half of each head turned, and biases before
// attention but not behind it.
func asGLM(c *hfConfig, m *Model) {
	m.QKVBias = or(c.AttentionBias, true)
	m.partlyRotary(c.rotaryShare(0.5))
}

func asGPT2(c *hfConfig, m *Model) {
	m.biased(true)
	m.learned(*c.NPositions, 0)
}

// asBigCode (StarCoder): GPT-2 with one key and value head for all queries.
func asBigCode(c *hfConfig, m *Model) {
	asGPT2(c, m)
	if or(c.MultiQuery, true) {
		m.KVHeads = 1
	}
}

// asNeoX: attention and MLP are added to the residual together or one after the
// other; either way each has its norm and the ops are the same. What a layer
// keeps is counted for the latter; together, they keep one residual less.
func asNeoX(c *hfConfig, m *Model) {
	m.biased(true)
	m.QKVBias = or(c.AttentionBias, true)
	m.OutBias = m.QKVBias
	m.partlyRotary(c.rotaryShare(0.25))
}

// asGPTJ: no biases in attention, one on the vocabulary; one norm for attention
// and MLP. A rotary_dim of null turns whole heads.
func asGPTJ(c *hfConfig, m *Model) {
	m.MLPBias, m.VocabBias, m.SharedNorm = true, true, true
	m.RotaryDim = or(c.RotaryDim, m.HeadDim)
}

// asLlama: attention_bias covers the output projection too. Granite's factors on
// embedding, residual and logits are no ops of their own.
func asLlama(c *hfConfig, m *Model) {
	m.QKVBias = or(c.AttentionBias, false)
	m.OutBias, m.MLPBias = m.QKVBias, or(c.MLPBias, false)
}

// asOPT: the first two rows of the table of positions are never used.
func asOPT(c *hfConfig, m *Model) {
	m.biased(or(c.EnableBias, true))
	m.learned(*c.Positions, 2)
}

// asPhi (1, 1.5 and 2): built like GPT-J, with biases everywhere.
func asPhi(c *hfConfig, m *Model) {
	m.biased(true)
	m.VocabBias, m.SharedNorm = true, true
	m.partlyRotary(c.rotaryShare(0.5))
}

func asPhi3(c *hfConfig, m *Model) { m.partlyRotary(c.rotaryShare(1)) }

// asQwen2 always has biases in the query, key and value projection.
func asQwen2(_ *hfConfig, m *Model) { m.QKVBias = true }

// asQwen3 norms its query and key heads; attention_bias covers the output
// projection too.
func asQwen3(c *hfConfig, m *Model) {
	m.QKNorm, m.QKVBias = true, or(c.AttentionBias, false)
	m.OutBias = m.QKVBias
}

// asStableLM: Llama with LayerNorm and a quarter of each head turned; the larger
// ones share a norm, as GPT-J does.
func asStableLM(c *hfConfig, m *Model) {
	m.QKVBias, m.SharedNorm = or(c.QKVBias, false), or(c.Parallel, false)
	m.partlyRotary(c.rotaryShare(0.25))
}

func asStarcoder2(c *hfConfig, m *Model) { m.biased(or(c.UseBias, true)) }

// activation reads what the MLP applies: "" where that is what was measured.
func (c *hfConfig) activation(f family) (string, error) {
	key, name := "hidden_act", f.act
	for _, a := range []struct {
		key  string
		name *string
	}{{"hidden_activation", c.Activation}, {"activation_function", c.ActivationFun}, {"hidden_act", c.Act}} {
		if a.name != nil {
			key, name = a.key, *a.name
			break
		}
	}
	kind := name
	switch {
	case name == "swish":
		kind = "silu"
	case slices.Contains([]string{"gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python", "gelu_accurate", "quick_gelu"}, name):
		kind = "gelu"
	}
	measured := "gelu"
	if f.gated {
		measured = "silu"
	}
	switch {
	case !slices.Contains(activations(), kind):
		return "", fmt.Errorf("%s: %q: not supported; want %s or another form of gelu", key, name, strings.Join(activations(), ", "))
	case kind == measured:
		return "", nil
	}
	return kind, nil
}

// The kinds of layers that are planned, as layer_types lists them.
const (
	fullAttention    = "full_attention"
	slidingAttention = "sliding_attention"
)

// layerKinds reports what layer_types has that is not planned. Classes without windows do not read
// it, but what lists other kinds for them computes something else than they do.
func (c *hfConfig) layerKinds(layers size) error {
	if c.LayerTypes == nil {
		return nil
	}
	for i, kind := range c.LayerTypes {
		if kind != fullAttention && kind != slidingAttention {
			return fmt.Errorf("layer_types[%d]: %.80q: not supported; layers of %s are planned, and of %s for sequences within sliding_window", i, kind, fullAttention, slidingAttention)
		}
	}
	if n := len(c.LayerTypes); n != *layers.n {
		return fmt.Errorf("layer_types: %s for the %d of %s: want one for each, or leave the key out if all are of %s", units.Count(n, "layer"), *layers.n, layers.key, fullAttention)
	}
	return nil
}

// window is the length up to which attention is full, or 0. Mistral's window is
// on unless null; Qwen's only with use_sliding_window, which is off by default,
// and then for the layers from max_window_layers on.
func (c *hfConfig) window() units.Tokens {
	qwen := strings.HasPrefix(c.ModelType, "qwen")
	switch {
	case c.SlidingWindow == nil || *c.SlidingWindow < 1:
		return 0
	case qwen && (c.UseSlidingWindow == nil || !*c.UseSlidingWindow):
		return 0
	case c.UseSlidingWindow != nil && !*c.UseSlidingWindow:
		return 0
	case c.LayerTypes != nil && !slices.Contains(c.LayerTypes, slidingAttention):
		return 0
	case c.LayerTypes == nil && qwen && c.MaxWindowLayers != nil && *c.MaxWindowLayers >= *c.Layers:
		return 0
	}
	return units.Tokens(*c.SlidingWindow)
}
