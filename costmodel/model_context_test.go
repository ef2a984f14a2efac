package costmodel_test

import (
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

func TestModelContext(t *testing.T) {
	for config, want := range map[string]units.Tokens{
		`{"max_position_embeddings": 131072}`: 131072,
		`{"n_positions": 2048}`:               2048,
		`{"hidden_size": 64}`:                 0,
		`{"max_position_embeddings": null}`:   0,
		`{"max_position_embeddings": -4}`:     0,
		`{"max_position_embeddings": 1e99}`:   0,
		`{"max_position_embeddings": 131072, "rope_scaling": {"factor": 8.0, "original_max_position_embeddings": 8192}}`:                            131072, // Llama 3.1
		`{"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "original_max_position_embeddings": 8192}}`:    131072, // Llama 3.2
		`{"max_position_embeddings": 131072, "rope_parameters": {"rope_type": "llama3", "factor": 32.0, "original_max_position_embeddings": 8192}}`: 131072,
		`{"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}}`:                                        65536,
		`{"max_position_embeddings": 32768, "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768}}`:                            131072, // Qwen2.5 with YaRN
		`{"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2}}`:                                                        8192,
		`{"max_position_embeddings": 32768, "rope_parameters": {"factor": 4, "original_max_position_embeddings": 32768}}`:                           131072,
		`{"max_position_embeddings": 4096, "rope_scaling": null}`:                                                                                   4096,
		`{"max_position_embeddings": 4096, "rope_scaling": [2]}`:                                                                                    0,
	} {
		if got := costmodel.ModelContext([]byte(config)); got != want {
			t.Errorf("%s: %d, want %d", config, got, want)
		}
	}
}

func TestModelQuantized(t *testing.T) {
	for config, want := range map[string]string{
		`{"quantization_config": {"quant_method": "gptq", "bits": 4}}`:                      "gptq, 4 bits",
		`{"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true}}`:   "bitsandbytes, 4 bits",
		`{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}`: "fp8",
		`{"quantization_config": {"load_in_8bit": true}}`:                                   "by an unnamed method, 8 bits",
		`{"quantization_config": {"quant_method": "gptq", "bits": "4"}}`:                    "gptq, 4 bits",
		`{"quantization_config": {"quant_method": "quark", "bits": {"q_proj": 4}}}`:         "quark",
		`{"quantization_config": {"quant_method": "aqlm", "load_in_4bit": "no"}}`:           "aqlm",
		`{"quantization_config": {"quant_method": 7, "bits": 1e400}}`:                       "by an unnamed method",
		`{"quantization_config": {}}`:                                                       "by an unnamed method",
		`{"quantization_config": null}`:                                                     "",
		`{"quantization_config": 4}`:                                                        "",
		`{"hidden_size": 64}`:                                                               "",
	} {
		if got := costmodel.ModelQuantized([]byte(config)); got != want {
			t.Errorf("%s: %q, want %q", config, got, want)
		}
	}
}
