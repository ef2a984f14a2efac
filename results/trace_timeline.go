package results

import (
	"fmt"
	"io"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/replay/comparison"
)

// TraceTimeline writes a replayed step as predicted and as recorded for Perfetto or
// chrome://tracing: two processes for each rank, one below the other. Every rank's
// zero is its own, so that only the lengths and order within a rank compare.
func TraceTimeline(w io.Writer, x *comparison.Timeline) error {
	t := &trace{}
	for rank, device := range x.Devices {
		for i, name := range []string{fmt.Sprintf("predicted rank %d: %s", rank, device), fmt.Sprintf("recorded rank %d: %s, block %d", rank, device, x.Block)} {
			pid := 2*rank + i
			t.name("process_name", pid, 0, name)
			t.place(pid)
			t.name("thread_name", pid, 0, fmt.Sprintf("plan %d", x.Plan))
		}
	}
	for i, tasks := range [][]costmodel.ReplayTask{x.Predicted, x.Recorded} {
		for _, k := range tasks {
			if k.Time > 0 {
				t.add(event{Name: traceName(k.ReplayKey), Cat: traceCategory(k.Op), PID: 2*k.Rank + i, Args: traceArgs(x, k.ReplayKey)}, k.Start, k.Start+k.Time)
			}
		}
	}
	return writeEvents(w, t.events)
}

// traceName is what people read; what belongs together has the same colour in a
// viewer, since that follows the name.
func traceName(k costmodel.ReplayKey) string {
	if k.Op == costmodel.MeetOp {
		return string(k.Op)
	}
	dir := k.Dir
	if k.Again {
		dir += " again"
	}
	return fmt.Sprintf("%s %s", k.Op, dir)
}

func traceCategory(o costmodel.ReplayOp) string {
	if o.Waits() {
		return "waiting"
	}
	return "compute"
}

func traceArgs(x *comparison.Timeline, k costmodel.ReplayKey) map[string]any {
	if x.Pipeline {
		return map[string]any{"chunk": k.Micro, "layer": k.Layer}
	}
	if x.Runs != nil {
		return map[string]any{"run": k.Micro, "module": x.Runs[k.Micro], "layer": k.Layer}
	}
	args := map[string]any{"micro-batch": k.Micro, "layer": k.Layer, "step": k.Step}
	if k.Chunk > 0 {
		args["chunk"] = k.Chunk
	}
	return args
}
