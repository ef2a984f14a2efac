package costmodel

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Model is the shape of a decoder-only transformer: pre-norm blocks of grouped
// attention with rotary positions and a gated MLP.
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
	QKVBias  bool `json:"qkv_bias,omitzero"`
	OutBias  bool `json:"out_bias,omitzero"` // of the attention's output projection
	MLPBias  bool `json:"mlp_bias,omitzero"`
	QKNorm   bool `json:"qk_norm,omitzero"` // RMSNorm of each query and key head
	// MaxLen is the longest sequence for which full causal attention is what
	// the model computes, 0 if there is no such limit: a configuration with an
	// active sliding window is modelled up to the window.
	MaxLen units.Tokens `json:"max_len_tokens,omitzero"`
}

func (m Model) qWidth() int  { return m.QHeads * m.HeadDim }
func (m Model) kvWidth() int { return m.KVHeads * m.HeadDim }

// qkvWidth is the number of outputs of the fused query, key and value projection.
func (m Model) qkvWidth() int { return m.qWidth() + 2*m.kvWidth() }

// gateUp is the number of outputs of the MLP's first projection.
func (m Model) gateUp() int {
	if m.GatedMLP {
		return 2 * m.FFN
	}
	return m.FFN
}

// LayerParams is the number of parameters of one layer.
func (m Model) LayerParams() int64 {
	h, q, qkv := int64(m.Hidden), int64(m.qWidth()), int64(m.qkvWidth())
	up, f := int64(m.gateUp()), int64(m.FFN)
	n := h*qkv + q*h + h*up + f*h + 2*h // the last: gains of two norms
	if m.QKVBias {
		n += qkv
	}
	if m.OutBias {
		n += h
	}
	if m.MLPBias {
		n += up + h
	}
	if m.QKNorm {
		n += 2 * int64(m.HeadDim)
	}
	return n
}

// embedParams is the number of parameters of the input embedding, and of the
// output projection where it is another matrix.
func (m Model) embedParams() int64 { return int64(m.Vocab) * int64(m.Hidden) }

// Params is the exact number of parameters.
func (m Model) Params() int64 {
	n := int64(m.Layers)*m.LayerParams() + int64(m.Hidden) + m.embedParams()
	if !m.TiedEmbeddings {
		n += m.embedParams()
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
	case m.MaxLen < 0:
		return fmt.Errorf("max_len_tokens: %d: must not be negative", int64(m.MaxLen))
	case 2*m.FFN > maxWidth || m.qkvWidth() > maxWidth:
		return fmt.Errorf("ffn, q_heads: a projection with more than %d outputs", maxWidth)
	}
	return nil
}

// Limits of a model: far above any published one, low enough that op shapes
// are valid and parameter counts stay inside int64.
const (
	maxLayers  = 1 << 12
	maxWidth   = 1 << 24
	maxHeads   = 1 << 12
	maxHeadDim = 1 << 12
	maxConfig  = 16 << 20 // bytes of a config.json
)

// hfConfig is what we read of a Hugging Face config.json; a pointer tells a
// missing key from a zero.
type hfConfig struct {
	ModelType     string   `json:"model_type"`
	Architectures []string `json:"architectures"`

	Layers  *int `json:"num_hidden_layers"`
	Hidden  *int `json:"hidden_size"`
	FFN     *int `json:"intermediate_size"`
	QHeads  *int `json:"num_attention_heads"`
	KVHeads *int `json:"num_key_value_heads"`
	HeadDim *int `json:"head_dim"`
	Vocab   *int `json:"vocab_size"`

	Tied          *bool `json:"tie_word_embeddings"`
	AttentionBias bool  `json:"attention_bias"`
	MLPBias       bool  `json:"mlp_bias"`

	SlidingWindow    *int     `json:"sliding_window"`
	UseSlidingWindow *bool    `json:"use_sliding_window"`
	MaxWindowLayers  *int     `json:"max_window_layers"`
	LayerTypes       []string `json:"layer_types"`

	Experts *int `json:"num_experts"`
	Local   *int `json:"num_local_experts"`
	Routed  *int `json:"n_routed_experts"`
}

// families lists the model types we know, with the class that the
// `architectures` entry must name.
func families() map[string]string {
	return map[string]string{
		"llama":   "LlamaForCausalLM",
		"mistral": "MistralForCausalLM",
		"qwen2":   "Qwen2ForCausalLM",
		"qwen3":   "Qwen3ForCausalLM",
	}
}

// ReadModel reads the config.json of a Hugging Face model of the llama,
// mistral, qwen2 or qwen3 family. Keys it does not need are ignored, for the
// format is not ours. An active sliding window is kept as Model.MaxLen.
//
// Errors begin with name and, where the data tell, the field and its value:
// broken JSON, duplicate keys, another architecture (with what was read and
// what is supported), experts, missing or impossible sizes.
func ReadModel(name string, data []byte) (Model, error) {
	fail := func(format string, args ...any) (Model, error) {
		return Model{}, fmt.Errorf("%s: "+format, append([]any{name}, args...)...)
	}
	if len(data) > maxConfig {
		return fail("%d bytes: a config.json has at most %d", len(data), maxConfig)
	}
	var c hfConfig
	if err := json.Unmarshal(data, &c); err != nil {
		return Model{}, configError(name, data, err)
	}
	if err := c.supported(); err != nil {
		return fail("%w", err)
	}
	if err := c.complete(); err != nil {
		return fail("%w", err)
	}
	m := c.model()
	if err := c.plausible(m); err != nil {
		return fail("%w", err)
	}
	return m, nil
}

func configError(name string, data []byte, err error) error {
	var sem *json.SemanticError
	if errors.As(err, &sem) && sem.JSONPointer != "" {
		key := strings.ReplaceAll(strings.TrimPrefix(string(sem.JSONPointer), "/"), "/", ".")
		got := fmt.Sprintf("%.40s", sem.JSONValue)
		if len(sem.JSONValue) == 0 {
			got = "a " + sem.JSONKind.String()
		}
		return fmt.Errorf("%s:%d: %s: %s: not the type this key has in a config.json", name, lineAt(data, sem.ByteOffset), key, got)
	}
	var syn *jsontext.SyntacticError
	if errors.As(err, &syn) {
		return fmt.Errorf("%s:%d: no valid JSON: %w", name, lineAt(data, syn.ByteOffset), err)
	}
	return fmt.Errorf("%s: want the JSON object of a Hugging Face config.json: %w", name, err)
}

func lineAt(data []byte, offset int64) int {
	return 1 + bytes.Count(data[:min(int(offset), len(data))], []byte("\n"))
}

func (c *hfConfig) supported() error {
	class, ok := families()[c.ModelType]
	if !ok || len(c.Architectures) > 1 || (len(c.Architectures) == 1 && c.Architectures[0] != class) {
		var known []string
		for t, a := range families() {
			known = append(known, t+" ("+a+")")
		}
		slices.Sort(known)
		return fmt.Errorf("model_type %q, architectures %q: not supported; the supported ones are %s", c.ModelType, c.Architectures, strings.Join(known, ", "))
	}
	for _, e := range []struct {
		key string
		n   *int
	}{{"num_experts", c.Experts}, {"num_local_experts", c.Local}, {"n_routed_experts", c.Routed}} {
		if e.n != nil && *e.n > 1 {
			return fmt.Errorf("%s: %d: mixtures of experts are not supported, only dense models", e.key, *e.n)
		}
	}
	return nil
}

// complete checks the keys without which nothing can be computed, and the
// ranges of the optional ones.
func (c *hfConfig) complete() error {
	for _, f := range []struct {
		key      string
		n        *int
		most     int
		required bool
	}{
		{"num_hidden_layers", c.Layers, maxLayers, true},
		{"hidden_size", c.Hidden, maxWidth, true},
		{"intermediate_size", c.FFN, maxWidth / 2, true},
		{"num_attention_heads", c.QHeads, maxHeads, true},
		{"vocab_size", c.Vocab, maxWidth, true},
		{"num_key_value_heads", c.KVHeads, maxHeads, false},
		{"head_dim", c.HeadDim, maxHeadDim, false},
	} {
		switch {
		case f.n == nil && f.required:
			return fmt.Errorf("%s: missing; is this the config.json of a language model?", f.key)
		case f.n != nil && (*f.n < 1 || *f.n > f.most):
			return fmt.Errorf("%s: %d: want 1 to %d", f.key, *f.n, f.most)
		}
	}
	if c.HeadDim == nil && *c.Hidden%*c.QHeads != 0 {
		return fmt.Errorf("hidden_size: %d: not a multiple of num_attention_heads %d, and there is no head_dim", *c.Hidden, *c.QHeads)
	}
	if c.KVHeads != nil && *c.QHeads%*c.KVHeads != 0 {
		return fmt.Errorf("num_key_value_heads: %d: must divide num_attention_heads %d", *c.KVHeads, *c.QHeads)
	}
	return nil
}

// model assembles a complete configuration. Families differ in what they do
// not say: Qwen2 always has QKV biases, Qwen3 always norms its heads, Llama's
// attention_bias covers the output projection too and Qwen3's as well. All four
// keep the output projection apart from the embedding unless told to tie them.
func (c *hfConfig) model() Model {
	m := Model{
		Name: c.ModelType, Layers: *c.Layers, Hidden: *c.Hidden, FFN: *c.FFN,
		QHeads: *c.QHeads, KVHeads: *c.QHeads, Vocab: *c.Vocab, GatedMLP: true,
		TiedEmbeddings: c.Tied != nil && *c.Tied,
	}
	if c.KVHeads != nil {
		m.KVHeads = *c.KVHeads
	}
	if m.HeadDim = *c.Hidden / *c.QHeads; c.HeadDim != nil {
		m.HeadDim = *c.HeadDim
	}
	switch c.ModelType {
	case "qwen2":
		m.QKVBias = true
	case "llama":
		m.QKVBias, m.OutBias, m.MLPBias = c.AttentionBias, c.AttentionBias, c.MLPBias
	case "qwen3":
		m.QKVBias, m.OutBias, m.QKNorm = c.AttentionBias, c.AttentionBias, true
	}
	m.MaxLen = c.window()
	return m
}

// window is the length up to which attention is full, or 0. Mistral's window is
// on unless null; Qwen's only with use_sliding_window, which is off by default,
// and then for the layers from max_window_layers on.
func (c *hfConfig) window() units.Tokens {
	switch {
	case c.SlidingWindow == nil || *c.SlidingWindow < 1:
		return 0
	case c.ModelType == "llama": // has no such feature and ignores the key
		return 0
	case strings.HasPrefix(c.ModelType, "qwen") && (c.UseSlidingWindow == nil || !*c.UseSlidingWindow):
		return 0
	case c.UseSlidingWindow != nil && !*c.UseSlidingWindow:
		return 0
	case c.LayerTypes != nil && !slices.Contains(c.LayerTypes, "sliding_attention"):
		return 0
	case c.LayerTypes == nil && strings.HasPrefix(c.ModelType, "qwen") && c.MaxWindowLayers != nil && *c.MaxWindowLayers >= *c.Layers:
		return 0
	}
	return units.Tokens(*c.SlidingWindow)
}

// plausible catches a result that single ranges cannot: products beyond limits.
func (c *hfConfig) plausible(m Model) error {
	if err := m.Validate(); err != nil {
		return err
	}
	const most = 1 << 46 // far beyond any model trained
	if n := float64(m.Layers) * (float64(m.Hidden)*float64(m.qkvWidth()+m.qWidth()+3*m.FFN) + float64(m.Hidden)); n > most {
		return fmt.Errorf("%.3g parameters: not plausible; look at num_hidden_layers %d, hidden_size %d, intermediate_size %d, head_dim %d", n, m.Layers, m.Hidden, m.FFN, m.HeadDim)
	}
	return nil
}
