package costmodel

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/evenkeel/evenkeel/internal/doc"
)

const maxConfig = 16 << 20 // bytes of a config.json

// hfConfig is what we read of a Hugging Face config.json; a pointer tells a
// missing key from a zero.
type hfConfig struct {
	Schema        string   `json:"schema"` // of evenkeel's own documents
	ModelType     string   `json:"model_type"`
	Architectures []string `json:"architectures"`

	Layers  *int `json:"num_hidden_layers"`
	Hidden  *int `json:"hidden_size"`
	FFN     *int `json:"intermediate_size"`
	QHeads  *int `json:"num_attention_heads"`
	KVHeads *int `json:"num_key_value_heads"`
	HeadDim *int `json:"head_dim"`
	Vocab   *int `json:"vocab_size"`

	// The names of GPT-2 and its kin, and of OPT.
	NLayer     *int `json:"n_layer"`
	NEmbd      *int `json:"n_embd"`
	NInner     *int `json:"n_inner"`
	NHead      *int `json:"n_head"`
	NPositions *int `json:"n_positions"`
	FFNDim     *int `json:"ffn_dim"`
	Positions  *int `json:"max_position_embeddings"`

	Tied          *bool `json:"tie_word_embeddings"`
	AttentionBias *bool `json:"attention_bias"`
	MLPBias       *bool `json:"mlp_bias"`
	UseBias       *bool `json:"use_bias"`
	EnableBias    *bool `json:"enable_bias"`
	QKVBias       *bool `json:"use_qkv_bias"`
	Parallel      *bool `json:"use_parallel_residual"`
	MultiQuery    *bool `json:"multi_query"`

	Act           *string `json:"hidden_act"`
	Activation    *string `json:"hidden_activation"`
	ActivationFun *string `json:"activation_function"`

	RotaryDim     *int     `json:"rotary_dim"`
	RotaryPct     *float64 `json:"rotary_pct"`
	PartialRotary *float64 `json:"partial_rotary_factor"`
	Rope          *struct {
		PartialRotary *float64 `json:"partial_rotary_factor"`
	} `json:"rope_parameters"` // as transformers writes it from version 5 on

	SlidingWindow    *int     `json:"sliding_window"`
	UseSlidingWindow *bool    `json:"use_sliding_window"`
	MaxWindowLayers  *int     `json:"max_window_layers"`
	LayerTypes       []string `json:"layer_types"`

	// Of what is refused.
	Experts        *int  `json:"num_experts"`
	Local          *int  `json:"num_local_experts"`
	Routed         *int  `json:"n_routed_experts"`
	CrossAttention *bool `json:"add_cross_attention"`
	PreNorm        *bool `json:"do_layer_norm_before"`
	NoFinalNorm    *bool `json:"_remove_final_layer_norm"`
	AffineNorm     *bool `json:"layer_norm_elementwise_affine"`
	QKLayerNorm    *bool `json:"qk_layernorm"`
	EmbedWidth     *int  `json:"word_embed_proj_dim"`

	MoE  jsontext.Value `json:"moe_num_experts"` // Ernie's: a number, or one for each modality
	FFNs *struct {
		MoE jsontext.Value `json:"moe_num_experts"`
	} `json:"ffn_config"` // DBRX's
	// The language model of one that also sees or hears, an hfConfig again.
	Text     jsontext.Value `json:"text_config"`
	LLM      jsontext.Value `json:"llm_config"`
	Language jsontext.Value `json:"language_config"`
}

// within is the language model within a configuration, the key that it is under, and its text; nil
// where there is none. It has none within itself.
func (c *hfConfig) within() (t *hfConfig, key string, text []byte) {
	for _, w := range []struct {
		key  string
		text jsontext.Value
	}{{"text_config", c.Text}, {"llm_config", c.LLM}, {"language_config", c.Language}} {
		t = &hfConfig{}
		if len(w.text) > 0 && json.Unmarshal(w.text, t) == nil {
			t.Text, t.LLM, t.Language = nil, nil, nil
			return t, w.key, w.text
		}
	}
	return nil, "", nil
}

// ReadModel reads the config.json of a Hugging Face model of one of the
// families of decoders that are listed in `families`: Llama and what is built
// like it, and the GPTs. Keys it does not need are ignored, for the format is
// not ours. An active sliding window is kept as Model.MaxLen, and so is the end
// of a learned table of positions.
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
	if msg, hint := doc.WholeFile(data); hint != "" {
		return fail("%s; %s", msg, hint)
	}
	var c hfConfig
	if err := json.Unmarshal(data, &c); err != nil {
		return Model{}, configError(name, data, err)
	}
	m, err := c.read(data)
	if err != nil {
		return fail("%w", err)
	}
	return m, nil
}

// read is the model of a configuration, whose text data is.
func (c *hfConfig) read(data []byte) (Model, error) {
	f, err := c.family()
	if err != nil {
		return Model{}, err
	}
	if err := c.fill(f, data); err != nil {
		return Model{}, err
	}
	if err := c.complete(f); err != nil {
		return Model{}, err
	}
	m, err := c.model(f)
	if err != nil {
		return Model{}, err
	}
	return m, c.plausible(f, m)
}

func configError(name string, data []byte, err error) error {
	var sem *json.SemanticError
	if errors.As(err, &sem) && sem.JSONPointer != "" {
		key := strings.ReplaceAll(strings.TrimPrefix(string(sem.JSONPointer), "/"), "/", ".")
		got := fmt.Sprintf("%.40s", sem.JSONValue)
		if len(sem.JSONValue) == 0 {
			got = "a " + kindName(sem.JSONKind)
		}
		return fmt.Errorf("%s:%d: %s: %s: not the type this key has in a config.json", name, lineAt(data, sem.ByteOffset), key, got)
	}
	var syn *jsontext.SyntacticError
	if errors.As(err, &syn) {
		if start := bytes.TrimSpace(data); len(start) == 0 || start[0] != '{' {
			return fmt.Errorf("%s: want the JSON object of a Hugging Face config.json, and the file %s", name, beginning(start))
		}
		return doc.NotJSON(name, data, err)
	}
	if sem != nil && sem.JSONKind != 0 { // of the whole file
		return fmt.Errorf("%s: want the JSON object of a Hugging Face config.json, not a %s", name, kindName(sem.JSONKind))
	}
	return fmt.Errorf("%s: want the JSON object of a Hugging Face config.json: %w", name, err)
}

// beginning says what stands where an object should begin.
func beginning(data []byte) string {
	if len(data) == 0 {
		return "is empty"
	}
	line, _, _ := bytes.Cut(data, []byte("\n"))
	return fmt.Sprintf("begins with %.40q", line)
}

// kindName is what people call a kind of JSON value.
func kindName(k jsontext.Kind) string {
	switch k {
	case jsontext.KindBeginArray:
		return "list"
	case jsontext.KindBeginObject:
		return "object"
	}
	return k.String()
}

func lineAt(data []byte, offset int64) int {
	return 1 + bytes.Count(data[:min(int(offset), len(data))], []byte("\n"))
}

// family finds the family of a configuration, or says what is known.
func (c *hfConfig) family() (family, error) {
	if kind, _, _ := strings.Cut(c.Schema, "/"); c.ModelType == "" && strings.HasPrefix(kind, "evenkeel.") {
		return family{}, fmt.Errorf("is an %s, expected the config.json of a Hugging Face model; name that instead", kind)
	}
	if c.ModelType == "" {
		return family{}, fmt.Errorf("model_type: missing%s; is this the config.json of a language model?", c.likelyType())
	}
	f, known := family{}, []string(nil)
	for _, g := range families() {
		if g.name == c.ModelType {
			f = g
		}
		known = append(known, g.name+" ("+g.class+")")
	}
	if err := c.contradicts(f); err != nil {
		return family{}, err
	}
	if f.name == "" || len(c.Architectures) > 1 || (len(c.Architectures) == 1 && c.Architectures[0] != f.class) {
		return family{}, fmt.Errorf("model_type %q, architectures %q: not supported; the supported ones are %s%s", c.ModelType, c.Architectures, strings.Join(known, ", "), cmp.Or(c.hint(), c.otherClass(f)))
	}
	return f, c.unusual()
}

// contradicts says of a model_type and an architecture that are known, but of two families, that
// one of them is wrong.
func (c *hfConfig) contradicts(f family) error {
	if f.name == "" || len(c.Architectures) != 1 {
		return nil
	}
	for _, g := range families() {
		if g.class == c.Architectures[0] && g.class != f.class {
			return fmt.Errorf("model_type %q, architectures %q: contradict each other: of %[1]s it is %[3]s, and %[4]s is of %[5]s; correct the one that is wrong", f.name, c.Architectures, f.class, g.class, g.name)
		}
	}
	return nil
}

// otherClass says what of a known model_type is planned where its architecture is none that is.
func (c *hfConfig) otherClass(f family) string {
	if f.name == "" || len(c.Architectures) == 0 {
		return ""
	}
	return fmt.Sprintf("; of %s what is planned is %s, which predicts the next token: to plan its layers, write that in the place of its architecture", f.name, f.class)
}

// likelyType is the model_type that the architectures have, where there are any that are known.
func (c *hfConfig) likelyType() string {
	for _, f := range families() {
		if slices.Contains(c.Architectures, f.class) {
			return fmt.Sprintf(" (of %s it is %q)", f.class, f.name)
		}
	}
	return ""
}

// hint is what else a configuration of no known family tells: a language model
// within it, or what no family has.
func (c *hfConfig) hint() string {
	t, key, text := c.within()
	for _, f := range families() {
		if t == nil || f.name != t.ModelType {
			continue
		}
		if _, err := t.read(text); err != nil { // as of one that leaves out what its class has anyway
			return fmt.Sprintf("; its %s is a %s, whose layers can be planned from a config.json of their own, but this one does not do: %v", key, f.name, err)
		}
		return fmt.Sprintf("; its %s is a %s: to plan the language model alone, write that object to a config.json of its own", key, f.name)
	}
	if err := c.experts(); err != nil {
		return "; " + err.Error()
	}
	return ""
}

// experts reports a mixture of experts, wherever its configuration counts them.
func (c *hfConfig) experts() error {
	type count struct {
		key string
		n   string
	}
	whole := func(n *int) string { return strconv.Itoa(or(n, 0)) }
	counts := []count{{"num_experts", whole(c.Experts)}, {"num_local_experts", whole(c.Local)}, {"n_routed_experts", whole(c.Routed)}, {"moe_num_experts", string(c.MoE)}}
	if c.FFNs != nil {
		counts = append(counts, count{"ffn_config.moe_num_experts", string(c.FFNs.MoE)})
	}
	if t, key, _ := c.within(); t != nil {
		counts = append(counts, count{key + ".num_experts", whole(t.Experts)}, count{key + ".num_local_experts", whole(t.Local)}, count{key + ".n_routed_experts", whole(t.Routed)})
	}
	for _, e := range counts {
		if severalExperts(e.n) {
			return fmt.Errorf("%s: %.40s: mixtures of experts are not supported, only dense models", e.key, strings.Join(strings.Fields(e.n), " "))
		}
	}
	return nil
}

// severalExperts says whether a count is above one, or one of an array of counts is.
func severalExperts(count string) bool {
	var all []int
	if json.Unmarshal([]byte("["+strings.Trim(strings.TrimSpace(count), "[]")+"]"), &all) != nil {
		return false
	}
	return slices.ContainsFunc(all, func(n int) bool { return n > 1 })
}

// unusual reports the first feature that the model's shape has no place for.
func (c *hfConfig) unusual() error {
	if err := c.experts(); err != nil {
		return err
	}
	for _, e := range []struct {
		key    string
		value  *bool
		usual  bool
		reason string
	}{
		{"add_cross_attention", c.CrossAttention, false, "layers with cross-attention are not supported, only decoders alone"},
		{"do_layer_norm_before", c.PreNorm, true, "norms after attention and MLP are not supported, only before"},
		{"_remove_final_layer_norm", c.NoFinalNorm, false, "a model without its final norm is not supported"},
		{"layer_norm_elementwise_affine", c.AffineNorm, true, "norms without a gain are not supported"},
		{"qk_layernorm", c.QKLayerNorm, false, "LayerNorm of query and key heads is not supported"},
	} {
		if e.value != nil && *e.value != e.usual {
			return fmt.Errorf("%s: %t: %s", e.key, *e.value, e.reason)
		}
	}
	return nil
}

// fill puts the sizes of a family's class in the place of keys that are missing.
func (c *hfConfig) fill(f family, data []byte) error {
	var given map[string]jsontext.Value
	if err := json.Unmarshal(data, &given); err != nil {
		return err
	}
	for _, s := range []struct {
		key string
		to  **int
		n   int
	}{{"num_key_value_heads", &c.KVHeads, f.absent.kvHeads}, {"head_dim", &c.HeadDim, f.absent.headDim}, {"sliding_window", &c.SlidingWindow, f.absent.window}, {"max_window_layers", &c.MaxWindowLayers, f.absent.fullLayers}, {"rotary_dim", &c.RotaryDim, f.absent.rotaryDim}} {
		if _, there := given[s.key]; there || s.n == 0 {
			continue
		}
		*s.to = &s.n
		if heads := f.keys(c).heads; s.to == &c.KVHeads && heads.n != nil && *heads.n%s.n != 0 {
			return fmt.Errorf("%s: missing: a %s then has %d, which do not divide %s %d; name how many there are, or null for as many", s.key, f.name, s.n, heads.key, *heads.n)
		}
	}
	return nil
}

// complete checks the keys without which nothing can be computed, and the
// ranges of the optional ones.
func (c *hfConfig) complete(f family) error {
	k := f.keys(c)
	for _, s := range []size{k.layers, k.hidden, k.ffn, k.heads, k.vocab, k.positions, {"num_key_value_heads", c.KVHeads, maxHeads, false}, {"head_dim", c.HeadDim, maxHeadDim, false}, {"rotary_dim", c.RotaryDim, maxHeadDim, false}} {
		switch {
		case s.n == nil && s.required:
			return fmt.Errorf("%s: missing; is this the config.json of a language model?", s.key)
		case s.n != nil && (*s.n < 1 || *s.n > s.most):
			return fmt.Errorf("%s: %d: want 1 to %d", s.key, *s.n, s.most)
		}
	}
	if c.HeadDim == nil && *k.hidden.n%*k.heads.n != 0 {
		return fmt.Errorf("%s: %d: not a multiple of %s %d, and there is no head_dim", k.hidden.key, *k.hidden.n, k.heads.key, *k.heads.n)
	}
	if c.KVHeads != nil && *k.heads.n%*c.KVHeads != 0 {
		return fmt.Errorf("num_key_value_heads: %d: must divide %s %d", *c.KVHeads, k.heads.key, *k.heads.n)
	}
	if err := c.layerKinds(k.layers); err != nil {
		return err
	}
	if share := c.rotaryShare(1); !(share > 0 && share <= 1) {
		return fmt.Errorf("rotary_pct, partial_rotary_factor: %v: want more than 0 and at most 1", share)
	}
	if c.EmbedWidth != nil && *c.EmbedWidth != *k.hidden.n {
		return fmt.Errorf("word_embed_proj_dim: %d: an embedding narrower or wider than %s %d is not supported", *c.EmbedWidth, k.hidden.key, *k.hidden.n)
	}
	return nil
}

// rotaryShare is the share of each head that rotary positions turn.
func (c *hfConfig) rotaryShare(otherwise float64) float64 {
	share := or(c.RotaryPct, or(c.PartialRotary, otherwise))
	if c.Rope != nil {
		return or(c.Rope.PartialRotary, share)
	}
	return share
}

// model assembles a complete configuration.
func (c *hfConfig) model(f family) (Model, error) {
	k := f.keys(c)
	m := Model{
		Name: c.ModelType, Layers: *k.layers.n, Hidden: *k.hidden.n, FFN: 4 * *k.hidden.n,
		QHeads: *k.heads.n, KVHeads: *k.heads.n, Vocab: *k.vocab.n,
		GatedMLP: f.gated, LayerNorm: f.layerNorm, TiedEmbeddings: or(c.Tied, f.tied),
	}
	if k.ffn.n != nil {
		m.FFN = *k.ffn.n
	}
	if c.KVHeads != nil {
		m.KVHeads = *c.KVHeads
	}
	m.HeadDim = or(c.HeadDim, m.Hidden/m.QHeads)
	if f.windowed {
		m.MaxLen = c.window()
	}
	var err error
	if m.Activation, err = c.activation(f); err != nil {
		return m, err
	}
	f.rest(c, &m)
	return m, nil
}

// or is an optional value or its default.
func or[T any](v *T, otherwise T) T {
	if v == nil {
		return otherwise
	}
	return *v
}

// plausible catches a result that single ranges cannot: products beyond limits.
func (c *hfConfig) plausible(f family, m Model) error {
	const most = 1 << 46 // far beyond any model trained
	k := f.keys(c)
	layer := float64(m.qkvWidth() + m.qWidth() + m.GateUp() + m.FFN + 1)
	if n := float64(m.Hidden) * (float64(m.Layers)*layer + float64(2*m.Vocab+m.PositionRows)); n > most {
		return fmt.Errorf("%.3g parameters: not plausible; look at %s %d, %s %d, %s %d, head_dim %d, %s %d", n, k.layers.key, m.Layers, k.hidden.key, m.Hidden, k.ffn.key, m.FFN, m.HeadDim, k.vocab.key, m.Vocab)
	}
	return m.Validate()
}
