package results

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/go-json-experiment/json"
)

// event is one entry of the Chrome trace format (Google, "Trace Event Format",
// complete events and metadata), which Perfetto opens too; times are in
// microseconds by that format's definition.
type event struct {
	Name string            `json:"name"`
	Ph   string            `json:"ph"`
	PID  int               `json:"pid"`
	TID  int               `json:"tid"`
	TS   float64           `json:"ts"`
	Dur  float64           `json:"dur,omitzero"`
	Args map[string]string `json:"args,omitempty"`
}

// Timeline writes a simulated step, a process a rank and a thread a resource,
// for Perfetto or chrome://tracing.
func Timeline(w io.Writer, s *costmodel.Step) error {
	resources := []string{}
	for _, span := range s.Timeline {
		if !slices.Contains(resources, span.Resource) {
			resources = append(resources, span.Resource)
		}
	}
	slices.Sort(resources)
	var events []event
	for r, rank := range s.Ranks {
		name := fmt.Sprintf("rank %d: %s, %d tokens (predicted)", r, rank.Device, int64(rank.Tokens))
		events = append(events, event{Name: "process_name", Ph: "M", PID: r, Args: map[string]string{"name": name}})
		for t, resource := range resources {
			events = append(events, event{Name: "thread_name", Ph: "M", PID: r, TID: t, Args: map[string]string{"name": resource}})
		}
	}
	spans := slices.Clone(s.Timeline)
	slices.SortStableFunc(spans, func(a, b costmodel.Span) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.Rank, b.Rank))
	})
	for _, span := range spans {
		events = append(events, event{
			Name: span.Name, Ph: "X", PID: span.Rank, TID: slices.Index(resources, span.Resource),
			TS: float64(span.Start) * 1e6, Dur: float64(span.End-span.Start) * 1e6,
		})
	}
	return json.MarshalWrite(w, struct {
		TraceEvents     []event `json:"traceEvents"`
		DisplayTimeUnit string  `json:"displayTimeUnit"`
	}{events, "ms"}, json.Deterministic(true))
}
