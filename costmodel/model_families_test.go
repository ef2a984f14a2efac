package costmodel

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/internal/units"
)

// published is a configuration as it was published, cut to the keys that
// matter, and the number of parameters of its weights.
type published struct {
	name, config string
	params       int64
}

// gpts are published models of every family besides those of model_test.go. The
// counts are those that the weights' files list (safetensors metadata, or
// numel of all tensors, tied ones once); GPT-NeoX-20B's stands on its model card,
// and GLM-4-9B's is what programs count that load its weights.
func gpts() []published {
	return []published{
		{"GPT-2", `{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new", "n_ctx": 1024,
 "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257}`, 124_439_808},
		{"GPT-2 XL", `{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new", "n_inner": null,
 "n_embd": 1600, "n_head": 25, "n_layer": 48, "n_positions": 1024, "vocab_size": 50257}`, 1_557_611_200},
		{"GPT-NeoX-20B", `{"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_act": "gelu_fast",
 "hidden_size": 6144, "intermediate_size": 24576, "max_position_embeddings": 2048, "num_attention_heads": 64, "num_hidden_layers": 44,
 "rotary_pct": 0.25, "tie_word_embeddings": false, "vocab_size": 50432}`, 20_554_567_680},
		{"Pythia-160M", `{"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_act": "gelu",
 "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12,
 "rotary_pct": 0.25, "tie_word_embeddings": false, "use_parallel_residual": true, "vocab_size": 50304}`, 162_322_944},
		{"GPT-J-6B", `{"architectures": ["GPTJForCausalLM"], "model_type": "gptj", "activation_function": "gelu_new", "n_inner": null,
 "n_embd": 4096, "n_head": 16, "n_layer": 28, "n_positions": 2048, "rotary_dim": 64, "tie_word_embeddings": false, "vocab_size": 50400}`, 6_050_882_784},
		{"StarCoder", `{"architectures": ["GPTBigCodeForCausalLM"], "model_type": "gpt_bigcode", "activation_function": "gelu",
 "multi_query": true, "n_embd": 6144, "n_head": 48, "n_inner": 24576, "n_layer": 40, "n_positions": 8192, "vocab_size": 49152}`, 15_517_456_384},
		{"StarCoder2-3B", `{"architectures": ["Starcoder2ForCausalLM"], "model_type": "starcoder2", "hidden_act": "gelu_pytorch_tanh",
 "hidden_size": 3072, "intermediate_size": 12288, "num_attention_heads": 24, "num_hidden_layers": 30, "num_key_value_heads": 2,
 "sliding_window": 4096, "use_bias": true, "vocab_size": 49152}`, 3_030_371_328},
		{"OPT-125M", `{"architectures": ["OPTForCausalLM"], "model_type": "opt", "activation_function": "relu", "_remove_final_layer_norm": false,
 "do_layer_norm_before": true, "ffn_dim": 3072, "hidden_size": 768, "max_position_embeddings": 2048, "num_attention_heads": 12,
 "num_hidden_layers": 12, "vocab_size": 50272, "word_embed_proj_dim": 768}`, 125_239_296},
		{"Phi-2", `{"architectures": ["PhiForCausalLM"], "model_type": "phi", "hidden_act": "gelu_new", "hidden_size": 2560,
 "intermediate_size": 10240, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "partial_rotary_factor": 0.4,
 "qk_layernorm": false, "tie_word_embeddings": false, "vocab_size": 51200}`, 2_779_683_840},
		{"Phi-3-mini", `{"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_act": "silu", "hidden_size": 3072,
 "intermediate_size": 8192, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
 "sliding_window": 262144, "tie_word_embeddings": false, "vocab_size": 32064}`, 3_821_079_552},
		{"Phi-4-mini", `{"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_act": "silu", "hidden_size": 3072,
 "intermediate_size": 8192, "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8, "partial_rotary_factor": 0.75,
 "tie_word_embeddings": true, "vocab_size": 200064}`, 3_836_021_760},
		{"StableLM-3B", `{"architectures": ["StableLmForCausalLM"], "model_type": "stablelm", "hidden_act": "silu", "hidden_size": 2560,
 "intermediate_size": 6912, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "partial_rotary_factor": 0.25,
 "tie_word_embeddings": false, "use_parallel_residual": false, "use_qkv_bias": false, "vocab_size": 50304}`, 2_795_443_200},
		{"Granite-3.1-2B", `{"architectures": ["GraniteForCausalLM"], "model_type": "granite", "attention_bias": false, "hidden_act": "silu",
 "hidden_size": 2048, "intermediate_size": 8192, "mlp_bias": false, "num_attention_heads": 32, "num_hidden_layers": 40,
 "num_key_value_heads": 8, "residual_multiplier": 0.22, "tie_word_embeddings": true, "vocab_size": 49155}`, 2_533_531_648},
		{"Granite-3.1-8B", `{"architectures": ["GraniteForCausalLM"], "model_type": "granite", "attention_bias": false, "hidden_act": "silu",
 "hidden_size": 4096, "intermediate_size": 12800, "mlp_bias": false, "num_attention_heads": 32, "num_hidden_layers": 40,
 "num_key_value_heads": 8, "residual_multiplier": 0.22, "tie_word_embeddings": true, "vocab_size": 49155}`, 8_170_848_256},
		{"GLM-4-9B", `{"architectures": ["GlmForCausalLM"], "model_type": "glm", "attention_bias": true, "head_dim": 128, "hidden_act": "silu",
 "hidden_size": 4096, "intermediate_size": 13696, "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2,
 "partial_rotary_factor": 0.5, "tie_word_embeddings": false, "vocab_size": 151552}`, 9_399_951_360},
		{"Gemma-2B", `{"architectures": ["GemmaForCausalLM"], "model_type": "gemma", "attention_bias": false, "head_dim": 256,
 "hidden_act": "gelu", "hidden_activation": null, "hidden_size": 2048, "intermediate_size": 16384, "num_attention_heads": 8,
 "num_hidden_layers": 18, "num_key_value_heads": 1, "vocab_size": 256000}`, 2_506_172_416},
	}
}

// config is the published configuration of a name, with some text replaced.
func config(t testing.TB, name string, replace ...string) []byte {
	t.Helper()
	for _, g := range gpts() {
		if g.name != name {
			continue
		}
		for i := 0; i < len(replace); i += 2 {
			if !strings.Contains(g.config, replace[i]) {
				t.Fatalf("%s: no %s to replace", name, replace[i])
			}
			g.config = strings.Replace(g.config, replace[i], replace[i+1], 1)
		}
		return []byte(g.config)
	}
	t.Fatalf("no configuration of %s", name)
	return nil
}

func TestPublishedParameterCountsOfGPTs(t *testing.T) {
	for _, g := range gpts() {
		m, err := ReadModel(g.name, []byte(g.config))
		if err != nil {
			t.Error(err)
			continue
		}
		if got := m.Params(); got != g.params {
			t.Errorf("%s: %d parameters, want %d", g.name, got, g.params)
		}
	}
}

// Every family of the table has a configuration in these tests, so that none is
// believed untested.
func TestEveryFamilyIsCounted(t *testing.T) {
	seen := llama3 + qwen2 + qwen3 + mistral
	for _, g := range gpts() {
		seen += g.config
	}
	last := ""
	for _, f := range families() {
		if !strings.Contains(seen, fmt.Sprintf("%q", f.name)) || !strings.Contains(seen, fmt.Sprintf("%q", f.class)) {
			t.Errorf("%s (%s): no published configuration of it is read", f.name, f.class)
		}
		if f.name <= last {
			t.Errorf("%s: after %s: messages list families by name", f.name, last)
		}
		last = f.name
	}
}

func TestReadGPTs(t *testing.T) {
	read := func(data []byte) Model {
		m, err := ReadModel("config.json", data)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, c := range []struct {
		config []byte
		want   Model
	}{
		{config(t, "GPT-2"), Model{
			Name: "gpt2", Layers: 12, Hidden: 768, FFN: 3072, QHeads: 12, KVHeads: 12, HeadDim: 64, Vocab: 50257, TiedEmbeddings: true,
			QKVBias: true, OutBias: true, MLPBias: true, LayerNorm: true, PositionRows: 1024, MaxLen: 1024,
		}},
		{config(t, "GPT-J-6B"), Model{
			Name: "gptj", Layers: 28, Hidden: 4096, FFN: 16384, QHeads: 16, KVHeads: 16, HeadDim: 256, Vocab: 50400,
			MLPBias: true, VocabBias: true, LayerNorm: true, SharedNorm: true, RotaryDim: 64,
		}},
		{config(t, "OPT-125M"), Model{
			Name: "opt", Layers: 12, Hidden: 768, FFN: 3072, QHeads: 12, KVHeads: 12, HeadDim: 64, Vocab: 50272, TiedEmbeddings: true, Activation: "relu",
			QKVBias: true, OutBias: true, MLPBias: true, LayerNorm: true, PositionRows: 2050, MaxLen: 2048,
		}},
		{config(t, "Gemma-2B"), Model{
			Name: "gemma", Layers: 18, Hidden: 2048, FFN: 16384, QHeads: 8, KVHeads: 1, HeadDim: 256, Vocab: 256000,
			TiedEmbeddings: true, GatedMLP: true, Activation: "gelu",
		}},
	} {
		if diff := cmp.Diff(c.want, read(c.config)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", c.want.Name, diff)
		}
	}
	// Heads of GPT-NeoX-20B have 96 elements, of Phi-2 80, of Phi-4-mini 128, of GPT-J-6B 256;
	// where a share is not whole, transformers rounds down.
	for data, want := range map[string]int{
		string(config(t, "GPT-NeoX-20B")):                               24,
		string(config(t, "GPT-NeoX-20B", `"rotary_pct": 0.25, `, "")):   24,
		string(config(t, "GPT-NeoX-20B", `0.25`, `0.3`)):                28,
		string(config(t, "GPT-NeoX-20B", `0.25`, `1`)):                  0,
		string(config(t, "Phi-2")):                                      32,
		string(config(t, "Phi-2", `"partial_rotary_factor": 0.4,`, ``)): 40,
		string(config(t, "Phi-2", `"partial_rotary_factor": 0.4`, `"rope_parameters": {"partial_rotary_factor": 0.3, "rope_theta": 1}`)): 24,
		string(config(t, "Phi-4-mini")):                                         96,
		string(config(t, "Phi-3-mini")):                                         0,
		string(config(t, "GLM-4-9B")):                                           64,
		string(config(t, "GLM-4-9B", ` "partial_rotary_factor": 0.5,`, ``)):     64,
		string(config(t, "GPT-J-6B")):                                           64,
		string(config(t, "GPT-J-6B", `"rotary_dim": 64, `, ``)):                 64,
		string(config(t, "GPT-J-6B", `"rotary_dim": 64`, `"rotary_dim": null`)): 256,
		string(config(t, "StableLM-3B")):                                        20,
		string(config(t, "StableLM-3B", `"partial_rotary_factor": 0.25,`, ``)):  20,
	} {
		if got := read([]byte(data)).RotaryDim; got != want {
			t.Errorf("%s\n%d elements of a head turn, want %d", data, got, want)
		}
	}
	if m := read(config(t, "StarCoder", `"multi_query": true`, `"multi_query": false`)); m.KVHeads != 48 {
		t.Errorf("StarCoder without multi-query: %d KV heads", m.KVHeads)
	}
	m := read(config(t, "StableLM-3B", `residual": false`, `residual": true`, `bias": false`, `bias": true`))
	if !m.SharedNorm || !m.QKVBias || m.OutBias || m.MLPBias {
		t.Errorf("StableLM with shared norms and biases: %+v", m)
	}
	if m := read(config(t, "GPT-2", `"vocab_size"`, `"tie_word_embeddings": false, "vocab_size"`)); m.TiedEmbeddings {
		t.Error("untied embeddings were read as tied")
	}
}

func TestActivations(t *testing.T) {
	for _, c := range []struct {
		data      []byte
		want, law string
	}{
		{config(t, "GPT-2"), "", ""},
		{config(t, "GPT-2", "gelu_new", "relu"), "relu", "gelu"},
		{config(t, "GPT-2", "gelu_new", "swish"), "silu", "gelu"},
		{config(t, "OPT-125M", `"activation_function": "relu", `, ""), "relu", "gelu"},
		{config(t, "Gemma-2B"), "gelu", "swiglu"},
		{config(t, "Gemma-2B", `"hidden_activation": null`, `"hidden_activation": "silu"`), "", ""},
		{config(t, "Phi-3-mini", `"hidden_act": "silu", `, ""), "", ""},
	} {
		m, err := ReadModel("c", c.data)
		if err != nil || m.Activation != c.want || (m.ChargedAs() == "") != (c.law == "") || !strings.Contains(m.ChargedAs(), c.law) {
			t.Errorf("%s\nactivation %q, %q: %v", c.data, m.Activation, m.ChargedAs(), err)
		}
	}
}

func TestReadGPTErrors(t *testing.T) {
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"class":      {config(t, "GPT-2", "GPT2LMHeadModel", "GPT2ForSequenceClassification"), `model_type "gpt2", architectures ["GPT2ForSequenceClassification"]: not supported; the supported ones are gemma (GemmaForCausalLM), glm (GlmForCausalLM), gpt2 (GPT2LMHeadModel)`},
		"two kinds":  {config(t, "GPT-2", "GPT2LMHeadModel", "Phi3ForCausalLM"), `model_type "gpt2", architectures ["Phi3ForCausalLM"]: contradict each other: of gpt2 it is GPT2LMHeadModel, and Phi3ForCausalLM is of phi3; correct the one that is wrong`},
		"its class":  {config(t, "GPT-2", "GPT2LMHeadModel", "GPT2ForSequenceClassification"), `; of gpt2 what is planned is GPT2LMHeadModel, which predicts the next token: to plan its layers, write that in the place of its architecture`},
		"neo":        {config(t, "GPT-2", `"gpt2"`, `"gpt_neo"`), `model_type "gpt_neo"`},
		"width":      {config(t, "GPT-2", `"n_embd": 768, `, ""), "n_embd: missing"},
		"heads":      {config(t, "GPT-2", `"n_head": 12`, `"n_head": 7`), "n_embd: 768: not a multiple of n_head 7"},
		"inner":      {config(t, "GPT-2 XL", `"n_inner": null`, `"n_inner": 0`), "n_inner: 0: want 1 to"},
		"positions":  {config(t, "GPT-2", `"n_positions": 1024, `, ""), "n_positions: missing"},
		"opt":        {config(t, "OPT-125M", `"max_position_embeddings": 2048`, `"max_position_embeddings": -1`), "max_position_embeddings: -1: want 1 to"},
		"neox ffn":   {config(t, "Pythia-160M", `"intermediate_size": 3072, `, ""), "intermediate_size: missing"},
		"share":      {config(t, "Pythia-160M", `0.25`, `1.5`), "rotary_pct, partial_rotary_factor: 1.5: want more than 0 and at most 1"},
		"rotary":     {config(t, "GPT-J-6B", `"rotary_dim": 64`, `"rotary_dim": 257`), "rotary_dim: 257: want at most head_dim 256"},
		"act":        {config(t, "GPT-2", "gelu_new", "xielu"), `activation_function: "xielu": not supported; want silu, gelu, relu`},
		"cross":      {config(t, "GPT-2", `"n_ctx": 1024`, `"add_cross_attention": true`), "add_cross_attention: true: layers with cross-attention"},
		"post-norm":  {config(t, "OPT-125M", `"do_layer_norm_before": true`, `"do_layer_norm_before": false`), "do_layer_norm_before: false: norms after"},
		"no norm":    {config(t, "OPT-125M", `"_remove_final_layer_norm": false`, `"_remove_final_layer_norm": true`), "_remove_final_layer_norm: true"},
		"projection": {config(t, "OPT-125M", `"word_embed_proj_dim": 768`, `"word_embed_proj_dim": 512`), "word_embed_proj_dim: 512: an embedding narrower or wider than hidden_size 768"},
		"qk norm":    {config(t, "Phi-2", `"qk_layernorm": false`, `"qk_layernorm": true`), "qk_layernorm: true"},
		"vocabulary": {config(t, "GPT-2", `"n_positions": 1024, "vocab_size": 50257`, `"n_positions": 16777216, "vocab_size": 16777216`, `"n_embd": 768, "n_head": 12`, `"n_embd": 2097120, "n_head": 4080`), "vocab_size 16777216"},
	} {
		_, err := ReadModel("config.json", c.data)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "config.json: ") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestModelValidateNamesTheField(t *testing.T) {
	for want, change := range map[string]func(*Model){
		"position_rows: -1":                            func(m *Model) { m.PositionRows = -1 },
		"max_len_tokens: 0: want 1 to position_rows 8": func(m *Model) { m.PositionRows = 8 },
		"max_len_tokens: 9: want 1 to position_rows 8": func(m *Model) { m.PositionRows, m.MaxLen = 8, 9 },
		"rotary_dim: 65":                               func(m *Model) { m.RotaryDim = 65 },
		`activation: "tanh": want silu`:                func(m *Model) { m.Activation = "tanh" },
		// 16 bytes of each were -9.2e18 once.
		"layers, hidden, ffn, vocab: 1.73e+18 parameters: want at most 1.41e+14": func(m *Model) {
			m.Layers, m.Hidden, m.FFN, m.GatedMLP = maxLayers, maxWidth, maxWidth/2, true
		},
	} {
		m := smallModel()
		change(&m)
		if err := m.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// What a layer keeps around its norms, tensor by tensor: input, norm, residual
// and norm of a GPT-2 block, input and norm of a GPT-J block, queries and keys
// before the norms of their heads; the reciprocal root of every norm, and of
// LayerNorm the mean.
func TestWhatIsKeptOfNorms(t *testing.T) {
	for _, c := range []struct {
		m        Model
		elements int
		bytes    units.Bytes
		measured bool // whole layers of its kind are
	}{
		{Model{Hidden: 256, GatedMLP: true}, 4 * 256, 4 + 4, true},
		{Model{Hidden: 1024, GatedMLP: true, QKNorm: true, QHeads: 16, KVHeads: 8, HeadDim: 128}, 4*1024 + (16+8)*128, 4*2 + 4*(16+8), false},
		{Model{Hidden: 768, LayerNorm: true}, 4 * 768, 4 * (2 + 2), false},
		{Model{Hidden: 4096, LayerNorm: true, SharedNorm: true}, 2 * 4096, 4 * (1 + 1), false},
	} {
		if n, b := c.m.keptByNorms(), c.m.keptStatistics(); n != c.elements || b != c.bytes || c.m.likeLayer() != c.measured {
			t.Errorf("%+v: %d elements and %d bytes a token, want %d and %d; like a measured layer: %t", c.m, n, b, c.elements, c.bytes, c.m.likeLayer())
		}
	}
}

// Widths that tensor cores are slow at are named, all of them.
func TestRaggedWidthsAreNamed(t *testing.T) {
	for _, c := range []struct {
		m    Model
		want string
	}{
		{Model{Vocab: 50272, Hidden: 768, FFN: 3072}, ""},
		{Model{Vocab: 50257, Hidden: 768, FFN: 3072}, "vocabulary width 50257: no multiple of 8"},
		{Model{Vocab: 50257, Hidden: 772, FFN: 3071}, "vocabulary width 50257, hidden width 772, MLP width 3071: no multiple"},
	} {
		if got := c.m.Ragged(); got == "" != (c.want == "") || !strings.HasPrefix(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.m, got, c.want)
		}
	}
}
