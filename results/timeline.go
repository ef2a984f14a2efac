package results

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/go-json-experiment/json"
)

// event is one entry of the Chrome trace format (Google, "Trace Event Format",
// complete events and metadata), which Perfetto opens too; times are in
// microseconds by that format's definition.
type event struct {
	Name string         `json:"name"`
	Cat  string         `json:"cat,omitzero"`
	Ph   string         `json:"ph"`
	PID  int            `json:"pid"`
	TID  int            `json:"tid"`
	TS   float64        `json:"ts"`
	Dur  float64        `json:"dur,omitzero"`
	Args map[string]any `json:"args,omitempty"`
}

// critical is the category of what is on the critical path.
const critical = "critical path"

// Timeline writes a simulated step for Perfetto or chrome://tracing: a process
// for each all-to-all group, in the order of their ring, with a thread for each
// resource of each member. The critical path of a layer is a process of its own
// above them, and its tasks are marked where they stand.
func Timeline(w io.Writer, groups []costmodel.Group, s *costmodel.Step) error {
	t := &trace{step: s, process: map[int]int{}, begins: map[string]units.Seconds{}}
	for _, span := range s.Timeline {
		if !slices.Contains(t.resources, span.Resource) {
			t.resources = append(t.resources, span.Resource)
		}
	}
	slices.Sort(t.resources)
	t.path()
	for g, group := range groups {
		t.group(g, group)
	}
	t.spans()
	return writeEvents(w, t.events)
}

func writeEvents(w io.Writer, events []event) error {
	return json.MarshalWrite(w, struct {
		TraceEvents     []event `json:"traceEvents"`
		DisplayTimeUnit string  `json:"displayTimeUnit"`
	}{events, "ms"}, json.Deterministic(true))
}

// trace collects events. Process 0 is the critical path, process g+1 group g.
type trace struct {
	step      *costmodel.Step
	resources []string
	process   map[int]int              // of a rank
	begins    map[string]units.Seconds // of the passes
	events    []event
}

func (t *trace) name(what string, pid, tid int, name string) {
	t.events = append(t.events, event{Name: what, Ph: "M", PID: pid, TID: tid, Args: map[string]any{"name": name}})
}

// place puts a process where it is to stand.
func (t *trace) place(pid int) {
	t.events = append(t.events, event{Name: "process_sort_index", Ph: "M", PID: pid, Args: map[string]any{"sort_index": pid}})
}

func (t *trace) group(g int, group costmodel.Group) {
	pid, tokens := g+1, int64(0)
	for _, m := range group {
		t.process[m.Rank] = pid
		tokens += int64(t.step.Ranks[m.Rank].Tokens)
		for i, resource := range t.resources {
			t.name("thread_name", pid, t.thread(m.Rank, i), fmt.Sprintf("rank %d %s", m.Rank, resource))
		}
	}
	name := fmt.Sprintf("group %d: ranks %s, %s (predicted)", g, memberRanks(group), units.Count(tokens, "token"))
	if len(group) == 1 {
		r := group[0].Rank
		name = fmt.Sprintf("rank %d: %s, %s (predicted)", r, t.step.Ranks[r].Device, units.Count(tokens, "token"))
	}
	t.name("process_name", pid, 0, name)
	t.place(pid)
}

func (t *trace) thread(rank, resource int) int { return rank*len(t.resources) + resource }

// path draws the critical path of the forward and of the backward layer where
// those layers are drawn: at the beginning, and where the backward pass begins.
func (t *trace) path() {
	if len(t.step.Path) == 0 {
		return
	}
	t.name("process_name", 0, 0, "critical path of a layer (predicted)")
	t.place(0)
	for tid, pass := range []string{"forward", "backward"} {
		t.name("thread_name", 0, tid, pass)
		t.begin(pass)
		at := t.begins[pass]
		for _, h := range t.step.Path {
			if h.Pass == pass {
				t.add(event{Name: fmt.Sprintf("rank %d: %s", h.Rank, h.Name), Cat: critical, TID: tid}, at+h.Start, at+h.End)
			}
		}
	}
}

// begin finds when the first layer of a pass begins.
func (t *trace) begin(pass string) {
	for _, s := range t.step.Timeline {
		if at, ok := t.begins[pass]; strings.HasPrefix(s.Name, "linear "+pass) && (!ok || s.Start < at) {
			t.begins[pass] = s.Start
		}
	}
}

func (t *trace) spans() {
	onPath := map[string]bool{}
	for _, h := range t.step.Path {
		onPath[spanKey(h.Rank, h.Name, t.begins[h.Pass]+h.Start)] = true
	}
	spans := slices.Clone(t.step.Timeline)
	slices.SortStableFunc(spans, func(a, b costmodel.Span) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.Rank, b.Rank))
	})
	for _, s := range spans {
		e := event{Name: s.Name, PID: t.process[s.Rank], TID: t.thread(s.Rank, slices.Index(t.resources, s.Resource))}
		if s.Resource != "ingress" && onPath[spanKey(s.Rank, s.Name, s.Start)] {
			e.Cat, e.Args = critical, map[string]any{"critical": true}
		}
		t.add(e, s.Start, s.End)
	}
}

// spanKey tells spans apart, on the scale of a nanosecond: two sums of the same
// times may differ by rounding.
func spanKey(rank int, name string, start units.Seconds) string {
	return fmt.Sprintf("%d %s %.9f", rank, name, float64(start))
}

func (t *trace) add(e event, start, end units.Seconds) {
	e.Ph, e.TS, e.Dur = "X", float64(start)*1e6, float64(end-start)*1e6
	t.events = append(t.events, e)
}
