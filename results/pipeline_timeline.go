package results

import (
	"fmt"
	"io"
	"strings"

	costs "github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/pipeline"
)

// PipelineTimeline writes a plan of a pipeline for Perfetto or chrome://tracing: a thread
// for each stage, whose devices all do the same.
func PipelineTimeline(w io.Writer, d *pipeline.Document) error {
	t := &trace{}
	t.name("process_name", 0, 0, fmt.Sprintf("pipeline of %s (predicted)", plural(len(d.Stages), "stage")))
	for s, x := range d.Stages {
		t.name("thread_name", 0, s, fmt.Sprintf("stage %d: ranks %s, %s, %s", s, units.Spans(x.Ranks), devicesOf(d, x.Ranks), plural(x.Layers, "layer")))
	}
	for s, order := range d.Orders {
		for _, o := range order {
			x := d.Chunks[o.Chunk]
			pass, args := "forward", map[string]any{"tokens": int64(x.Slice + wholeTokens(d, x))}
			if o.Backward {
				pass, args["layers computed again"] = "backward", d.Recompute[s][o.Chunk]
			}
			t.add(event{Name: fmt.Sprintf("%s %d: %s", pass, o.Chunk, holds(d, x)), TID: s, Args: args}, o.Start, o.End)
		}
	}
	return writeEvents(w, t.events)
}

// holds says what a chunk has: "tokens 0-32k of sequence 5 (96k) + 12 whole".
func holds(d *pipeline.Document, x costs.Chunk) string {
	var parts []string
	if x.Slice > 0 {
		parts = append(parts, "tokens "+slice(d, x))
	}
	if n := len(x.Whole); n > 0 {
		parts = append(parts, fmt.Sprintf("%d whole", n))
	}
	return strings.Join(parts, " + ")
}
