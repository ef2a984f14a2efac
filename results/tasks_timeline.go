package results

import (
	"fmt"
	"io"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/multitask"
)

// TaskTimeline writes a plan of tasks for Perfetto or chrome://tracing: a process for each
// device type and node, with a thread for each rank.
func TaskTimeline(w io.Writer, d *multitask.Document) error {
	t, pid := &trace{}, 0
	process := make([]int, len(d.Memory)) // by rank
	for _, e := range d.Devices {
		for _, node := range e.Ranks {
			t.name("process_name", pid, 0, fmt.Sprintf("%s, ranks %s (predicted)", e.Device, units.Spans(node)))
			t.place(pid)
			for _, rank := range node {
				process[rank] = pid
				t.name("thread_name", pid, rank, fmt.Sprintf("rank %d", rank))
			}
			pid++
		}
	}
	for _, r := range byStart(d) {
		m := d.Modules[r.Module]
		for i, rank := range r.Ranks {
			t.add(event{
				Name: fmt.Sprintf("%s, %s", m.Name, plural(r.Layers, "layer")), PID: process[rank], TID: rank,
				Args: map[string]any{"task": m.Task, "samples": r.Samples[i]},
			}, r.Start, r.End)
		}
	}
	return writeEvents(w, t.events)
}
