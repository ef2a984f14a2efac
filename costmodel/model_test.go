package costmodel

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Published configurations, cut to the keys that matter.
const (
	llama3 = `{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": false, "hidden_act": "silu",
 "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32,
 "num_key_value_heads": 8, "rope_theta": 500000.0, "tie_word_embeddings": false, "vocab_size": 128256}`
	qwen2 = `{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
 "max_window_layers": 24, "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
 "sliding_window": 131072, "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936}`
	qwen3 = `{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": false, "head_dim": 128,
 "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_hidden_layers": 28,
 "num_key_value_heads": 8, "sliding_window": null, "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936}`
	mistral = `{"architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
 "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "sliding_window": 4096, "vocab_size": 32000}`
)

// TestPublishedParameterCounts: the counts are those of the published weights
// (Llama-3-8B, Qwen2-0.5B, Qwen3-0.6B, Mistral-7B-v0.1).
func TestPublishedParameterCounts(t *testing.T) {
	for config, want := range map[string]int64{
		llama3: 8_030_261_248, qwen2: 494_032_768, qwen3: 596_049_920, mistral: 7_241_732_096,
	} {
		m, err := ReadModel("config.json", []byte(config))
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Params(); got != want {
			t.Errorf("%s: %d parameters, want %d", m.Name, got, want)
		}
	}
}

func TestReadModel(t *testing.T) {
	got, err := ReadModel("config.json", []byte(qwen2))
	if err != nil {
		t.Fatal(err)
	}
	want := Model{
		Name: "qwen2", Layers: 24, Hidden: 896, FFN: 4864, QHeads: 14, KVHeads: 2, HeadDim: 64, Vocab: 151936,
		TiedEmbeddings: true, GatedMLP: true, QKVBias: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	noKV := strings.Replace(llama3, `"num_key_value_heads": 8,`, "", 1)
	if m, err := ReadModel("c", []byte(noKV)); err != nil || m.KVHeads != 32 || m.HeadDim != 128 {
		t.Errorf("defaults: %+v: %v", m, err)
	}
}

// A key that is not there at all is not null: classes of transformers have sizes of their own
// for it (their configuration_*.py; of a Mistral 8 heads and a window of 4096).
func TestMissingIsNotNull(t *testing.T) {
	of := func(family, class, more string) string {
		return fmt.Sprintf(`{"model_type": %q, "architectures": [%q], "num_hidden_layers": 2, "hidden_size": 2048, "intermediate_size": 4096, "num_attention_heads": 32, "vocab_size": 1000%s}`, family, class, more)
	}
	for config, want := range map[string][3]int{ // KV heads, their width, window
		of("mistral", "MistralForCausalLM", ""):                                                      {8, 64, 4096},
		of("mistral", "MistralForCausalLM", `, "num_key_value_heads": null, "sliding_window": null`): {32, 64, 0},
		of("qwen2", "Qwen2ForCausalLM", ""):                                                          {32, 64, 0},
		of("qwen2", "Qwen2ForCausalLM", `, "use_sliding_window": true`):                              {32, 64, 0}, // its first 28 layers see all
		of("qwen2", "Qwen2ForCausalLM", `, "use_sliding_window": true, "max_window_layers": 1`):      {32, 64, 4096},
		of("qwen3", "Qwen3ForCausalLM", ""):                                                          {32, 128, 0},
		of("glm", "GlmForCausalLM", ""):                                                              {2, 128, 0},
		of("glm", "GlmForCausalLM", `, "num_key_value_heads": null, "head_dim": null`):               {32, 64, 0},
		of("gemma", "GemmaForCausalLM", ""):                                                          {16, 256, 0},
		of("starcoder2", "Starcoder2ForCausalLM", ""):                                                {2, 64, 0},
		of("llama", "LlamaForCausalLM", ""):                                                          {32, 64, 0},
	} {
		m, err := ReadModel("c", []byte(config))
		if got := [3]int{m.KVHeads, m.HeadDim, int(m.MaxLen)}; err != nil || got != want {
			t.Errorf("%s\n%v, want %v: %v", config, got, want, err)
		}
	}
	_, err := ReadModel("c", []byte(strings.Replace(of("mistral", "MistralForCausalLM", ""), `heads": 32`, `heads": 4`, 1)))
	if want := "num_key_value_heads: missing: a mistral then has 8, which do not divide num_attention_heads 4; name how many"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

func TestSlidingWindow(t *testing.T) {
	on := strings.Replace(qwen2, `"use_sliding_window": false`, `"use_sliding_window": true`, 1)
	kinds := func(window int) string { // of 24 layers
		return `"layer_types": [` + strings.Repeat(`"full_attention", `, 24-window) + strings.TrimSuffix(strings.Repeat(`"sliding_attention", `, window), ", ") + `]`
	}
	for config, want := range map[string]int64{
		mistral: 4096,
		strings.Replace(mistral, `"sliding_window": 4096`, `"sliding_window": null`, 1): 0,
		qwen2: 0,
		on:    0, // max_window_layers is the number of layers: no layer is windowed
		strings.Replace(on, `"max_window_layers": 24`, `"max_window_layers": 21`, 1):       131072,
		strings.Replace(on, `"max_window_layers": 24`, kinds(3), 1):                        131072,
		strings.Replace(llama3, `"hidden_act"`, `"sliding_window": 4096, "hidden_act"`, 1): 0,
	} {
		m, err := ReadModel("c", []byte(config))
		if err != nil || int64(m.MaxLen) != want {
			t.Errorf("%s\nlimit %d, want %d: %v", config, m.MaxLen, want, err)
		}
	}
}

// Whatever the family, and by its own name for the number of layers.
func TestLayersOfOtherKindsAreRefused(t *testing.T) {
	configs := []string{llama3, qwen2, qwen3, mistral}
	for _, g := range gpts() {
		configs = append(configs, g.config)
	}
	for _, config := range configs {
		for types, want := range map[string]string{
			`["chunked_attention"]`: `layer_types[0]: "chunked_attention": not supported`,
			`[]`:                    "layer_types: 0 layers for the ",
			`null`:                  "",
		} {
			_, err := ReadModel("c", []byte(strings.Replace(config, `"model_type"`, `"layer_types": `+types+`, "model_type"`, 1)))
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s in %s: %v, want %q", types, config, err, want)
			}
		}
	}
}

func TestReadModelErrors(t *testing.T) {
	swap := func(old, new string) string {
		if !strings.Contains(llama3, old) {
			t.Fatalf("no %q to replace", old)
		}
		return strings.Replace(llama3, old, new, 1)
	}
	for name, c := range map[string]struct{ data, want string }{
		"unknown":            {`{"model_type": "mamba", "architectures": ["MambaForCausalLM"]}`, `model_type "mamba", architectures ["MambaForCausalLM"]: not supported; the supported ones are gemma (GemmaForCausalLM), glm (GlmForCausalLM), gpt2`},
		"with images":        {`{"model_type": "seer", "architectures": ["SeerForConditionalGeneration"], "text_config": ` + llama3 + `}`, "starcoder2 (Starcoder2ForCausalLM); its text_config is a llama: to plan the language model alone, write that object to a config.json of its own"},
		"with pictures":      {`{"model_type": "seer", "llm_config": ` + llama3 + `}`, "; its llm_config is a llama: to plan the language model alone"},
		"with sounds":        {`{"model_type": "seer", "language_config": ` + llama3 + `}`, "; its language_config is a llama: to plan the language model alone"},
		"without its sizes":  {`{"model_type": "seer", "text_config": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32064}}`, "; its text_config is a llama, whose layers can be planned from a config.json of their own, but this one does not do: "},
		"of another kind":    {`{"model_type": "seer", "text_config": "llama.json"}`, "starcoder2 (Starcoder2ForCausalLM)"},
		"with others":        {`{"model_type": "seer", "text_config": {"model_type": "seer_text"}, "n_routed_experts": 4}`, "starcoder2 (Starcoder2ForCausalLM); n_routed_experts: 4: mixtures of experts are not supported, only dense models"},
		"experts within":     {`{"model_type": "seer", "text_config": {"model_type": "seer_text", "num_local_experts": 16}}`, "; text_config.num_local_experts: 16: mixtures of experts are not supported, only dense models"},
		"experts by name":    {`{"model_type": "seer", "moe_num_experts": 64}`, "; moe_num_experts: 64: mixtures of experts"},
		"experts by sense":   {`{"model_type": "seer", "moe_num_experts": [64, 32]}`, "; moe_num_experts: [64, 32]: mixtures of experts"},
		"experts of the MLP": {`{"model_type": "seer", "ffn_config": {"moe_num_experts": 16}}`, "; ffn_config.moe_num_experts: 16: mixtures of experts"},
		"mixed":              {swap(`"LlamaForCausalLM"`, `"LlamaForSequenceClassification"`), "not supported"},
		"nothing":            {`{}`, "config.json: model_type: missing; is this the config.json of a language model?"},
		"a document":         {`{"schema":"evenkeel.profile/v1"}`, `config.json: is an evenkeel.profile, expected the config.json of a Hugging Face model; name that instead`},
		"missing":            {swap(`"hidden_size": 4096, `, ""), "hidden_size: missing"},
		"zero":               {swap(`"num_hidden_layers": 32`, `"num_hidden_layers": 0`), "num_hidden_layers: 0: want 1 to"},
		"negative":           {swap(`"vocab_size": 128256`, `"vocab_size": -1`), "vocab_size: -1: want"},
		"absurd":             {swap(`"intermediate_size": 14336`, `"intermediate_size": 99999999`), "intermediate_size: 99999999: want"},
		"implausible":        {strings.NewReplacer(`"num_hidden_layers": 32`, `"num_hidden_layers": 4000`, "14336", "8000000").Replace(llama3), "not plausible"},
		"kv heads":           {swap(`"num_key_value_heads": 8`, `"num_key_value_heads": 5`), "num_key_value_heads: 5: must divide num_attention_heads 32"},
		"heads":              {swap(`"num_attention_heads": 32`, `"num_attention_heads": 24`), "hidden_size: 4096: not a multiple of num_attention_heads 24"},
		"fraction":           {swap(`"vocab_size": 128256`, `"vocab_size": 1.5`), "config.json:3: vocab_size: 1.5: not the type"},
		"text":               {swap(`4096`, `"4096"`), "config.json:2: hidden_size:"},
		"duplicate":          {swap(`"vocab_size": 128256`, `"vocab_size": 1, "vocab_size": 2`), "vocab_size"},
		"experts":            {swap(`"hidden_act"`, `"num_local_experts": 8, "hidden_act"`), "num_local_experts: 8: mixtures of experts"},
		"linear attention":   {swap(`"hidden_act"`, `"layer_types": ["full_attention", "linear_attention"], "hidden_act"`), `layer_types[1]: "linear_attention": not supported; layers of full_attention are planned, and of sliding_attention for sequences within sliding_window`},
		"too few kinds":      {swap(`"hidden_act"`, `"layer_types": ["full_attention"], "hidden_act"`), "layer_types: 1 layer for the 32 of num_hidden_layers: want one for each, or leave the key out if all are of full_attention"},
		"torn":               {llama3[:100], "ends in the middle: it was cut short; correct the file or make it again"},
		"not a number":       {swap(`"vocab_size": 128256`, `"vocab_size": NaN`), "config.json:3: vocab_size: NaN is no JSON: leave out what is not known"},
		"empty":              {"", "config.json: want the JSON object of a Hugging Face config.json, and the file is empty"},
		"no type":            {strings.Replace(llama3, `"model_type": "llama", `, "", 1), `config.json: model_type: missing (of LlamaForCausalLM it is "llama"); is this the config.json of a language model?`},
		"no JSON":            {"# Llama\n{}", `config.json: want the JSON object of a Hugging Face config.json, and the file begins with "# Llama"`},
		"list":               {"[1]", "config.json"},
		"two in a row":       {llama3 + llama3, "config.json"},
		"compressed":         {"\x1f\x8b\x08", "config.json: is compressed with gzip; decompress it first, such as with gunzip -k"},
	} {
		_, err := ReadModel("config.json", []byte(c.data))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "config.json") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func FuzzReadModel(f *testing.F) {
	for _, s := range []string{llama3, qwen2, qwen3, mistral, "{", `{"model_type":"llama","num_hidden_layers":1e3}`} {
		f.Add([]byte(s))
	}
	for _, g := range gpts() {
		f.Add([]byte(g.config))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := ReadModel("c", data)
		if err != nil {
			return
		}
		if err := m.Validate(); err != nil {
			t.Errorf("accepted an invalid model: %v", err)
		}
		if n := m.Params(); n < 1 || n > 1<<47 {
			t.Errorf("%d parameters", n)
		}
	})
}
