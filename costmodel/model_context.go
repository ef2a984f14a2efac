package costmodel

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/evenkeel/evenkeel/internal/units"
)

// ModelContext is the longest sequence that the config.json of a model whose positions are
// rotary states, stretched as it says; 0 where it states none. It is no limit of what can be
// planned, since contexts are extended, and so no part of Model. The data are as ReadModel
// takes them.
func ModelContext(data []byte) units.Tokens {
	type rope struct {
		Kind     string  `json:"rope_type"`
		Old      string  `json:"type"` // the key before rope_type
		Factor   float64 `json:"factor"`
		Original float64 `json:"original_max_position_embeddings"`
	}
	var c struct {
		Positions  float64 `json:"max_position_embeddings"`
		NPositions float64 `json:"n_positions"`
		Scaling    rope    `json:"rope_scaling"`
		Parameters rope    `json:"rope_parameters"` // as transformers writes it from version 5 on
	}
	if json.Unmarshal(data, &c) != nil { // of another form than is known: it states nothing
		return 0
	}
	most := max(c.Positions, c.NPositions)
	for _, r := range []rope{c.Scaling, c.Parameters} {
		// Llama 3's factor slows the longest waves; how far that reaches is what the file states:
		// 3.2 has a factor of 32 over 8192, and a context of 131072.
		if most > 0 && (r.Kind == "llama3" || r.Old == "llama3") {
			continue
		}
		// Some files state the stretched context, some what was stretched.
		from := r.Original
		if from == 0 {
			from = max(c.Positions, c.NPositions)
		}
		most = max(most, from*r.Factor)
	}
	if !(most >= 1 && most < math.MaxInt32) {
		return 0
	}
	return units.Tokens(most)
}

// ModelQuantized is how the config.json of a model says that its weights are quantized, such as
// "gptq, 4 bits"; "" where it does not. It changes nothing that is planned: training has whole weights.
// Tools write these fields in types of their own, so that one which cannot be read hides no other.
func ModelQuantized(data []byte) string {
	var c struct {
		Quantized map[string]jsontext.Value `json:"quantization_config"`
	}
	if json.Unmarshal(data, &c) != nil || c.Quantized == nil {
		return ""
	}
	var method string
	if json.Unmarshal(c.Quantized["quant_method"], &method) != nil || method == "" {
		method = "by an unnamed method"
	}
	words := []string{fmt.Sprintf("%.40s", method)}
	bits, err := strconv.ParseFloat(strings.Trim(string(c.Quantized["bits"]), `"`), 64)
	switch {
	case string(c.Quantized["load_in_4bit"]) == "true": // bitsandbytes
		bits = 4
	case string(c.Quantized["load_in_8bit"]) == "true":
		bits = 8
	case err != nil:
		bits = 0
	}
	if bits > 0 && bits <= 64 {
		words = append(words, fmt.Sprintf("%g bits", bits))
	}
	return strings.Join(words, ", ")
}

// TooLong says why sequences of more than MaxLen tokens are not planned, with the ways out.
func (m Model) TooLong() string {
	if m.PositionRows > 0 {
		return "the model's table of learned positions ends after " + units.Count(m.MaxLen, "token") + "; for longer ones raise n_positions (in OPT max_position_embeddings) in its config.json, and so the table"
	}
	return "beyond the model's sliding window of " + units.Count(m.MaxLen, "token") + " attention is no longer full causal, and windowed attention is not modelled; take at most the window, or turn it off in the model's config.json"
}
