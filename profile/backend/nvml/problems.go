//go:build cgo && linux

package nvml

import (
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/internal/units"
)

// problems collects what could not be read. A machine has up to a dozen GPUs
// that refuse the same fields for the same reason, and a reader wants to be told
// once.
type problems struct {
	sentences []string
	refused   []refusal
}

// refusal is a field that some GPUs do not tell, for one reason.
type refusal struct {
	what, why string
	gpus      []int
}

func (p *problems) say(sentence string) { p.sentences = append(p.sentences, sentence) }

// of notes that a field of a GPU is missing.
func (p *problems) of(gpu int, what, why string) {
	for i := range p.refused {
		r := &p.refused[i]
		if r.what != what || r.why != why {
			continue
		}
		if !slices.Contains(r.gpus, gpu) {
			r.gpus = append(r.gpus, gpu)
		}
		return
	}
	p.refused = append(p.refused, refusal{what, why, []int{gpu}})
}

// String is all problems in one line: what concerns the machine, then the
// fields that the same GPUs refuse for the same reason together, in the order in
// which they were first met.
func (p *problems) String() string {
	said := slices.Clone(p.sentences)
	for i, r := range p.refused {
		same := func(o refusal) bool { return o.why == r.why && slices.Equal(o.gpus, r.gpus) }
		if slices.ContainsFunc(p.refused[:i], same) {
			continue
		}
		var fields []string
		for _, o := range p.refused[i:] {
			if same(o) {
				fields = append(fields, o.what)
			}
		}
		of := "GPU "
		if len(r.gpus) > 1 {
			of = "GPUs "
		}
		said = append(said, fmt.Sprintf("the %s of %s%s could not be read: %s", listed(fields), of, units.Spans(r.gpus), r.why))
	}
	return strings.Join(said, "; ")
}

// listed joins words as a sentence does: "name, UUID and memory".
func listed(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " and " + words[last]
}
