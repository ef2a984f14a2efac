package importer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// otherTable says what a table is that holds no op's times, by its columns; ""
// for one that nobody knows.
func otherTable(columns []string) string {
	has := func(names ...string) bool {
		return !slices.ContainsFunc(names, func(n string) bool { return !slices.Contains(columns, n) })
	}
	switch {
	case has("impl", "ms_per_iter"), has("usp_ms"), has("cp_backend"):
		return "times of whole context-parallel runs, in which several GPUs compute and communicate at once: no op's time can be told from them; " +
			"they are for comparing a plan's step with"
	case has("range", "number"):
		return "a histogram of sequence lengths, not of times; it is for the lengths of a batch that solve plans"
	case slices.ContainsFunc(columns, func(c string) bool { return strings.HasSuffix(c, "_tflops") }) && !has("batch"):
		return "rates without the batch and the heads they were measured at: no shape, so no time, can be told from them"
	case has("layers", "iteration_forward_ms"):
		return "times of whole models with several layers, embeddings included: no op's time can be told from them"
	case has("datasheet_mem_gib"), has("gpu", "units"):
		return "a table of devices, not of times: name it with --devices"
	case slices.ContainsFunc(vidurKinds(), func(k tableKind) bool { return has(k.columns...) }):
		return "one of Vidur's own tables: import it with --from vidur"
	case slices.ContainsFunc(columns, func(c string) bool { return strings.HasPrefix(c, "time_stats.") }):
		return "a table of Vidur, but none that is read: those are network/*/all_reduce.csv and send_recv.csv, and compute/*/mlp.csv"
	}
	return ""
}

// refuse recognises by its first line what is no table at all.
func refuse(name, first string) error {
	text := strings.TrimSpace(first)
	other := ""
	tagged := launcherTags.MatchString(text)
	if tagged { // which may begin as JSON does: [1,0]<stdout>:
		text = strings.TrimSpace(stripLauncher(text))
	}
	switch {
	case strings.HasPrefix(text, "PAR1"):
		other = "is a parquet file; import it with --from aiconfigurator"
	case strings.HasPrefix(text, "<"):
		other = "is XML, such as a topology that NCCL reads: it describes links and holds no times"
	case strings.HasPrefix(text, "{"), strings.HasPrefix(text, "["):
		other = "is JSON, not a table; profiler traces are imported with --from kineto, Galvatron's profiles with --from galvatron"
	case strings.HasPrefix(text, "==PROF=="):
		other = "is output of Nsight Compute, which locks clocks to base while it measures: such times are not comparable with others"
	case strings.Contains(text, "GPU0") && (strings.Contains(text, "GPU1") || strings.Contains(text, "CPU Affinity")):
		other = "is a topology that nvidia-smi printed: it describes links and holds no times"
	case strings.Contains(text, "nccl-tests"), strings.Contains(text, "nThread"), strings.Contains(text, "out-of-place"):
		other = "is a log of nccl-tests; import it with --from nccl-tests"
	case strings.HasPrefix(text, "nvbandwidth"):
		other = "is output of nvbandwidth; import it with --from nvbandwidth"
	case tagged:
		other = "is what a program printed, with a launcher's mark before every line, and no table; a log of nccl-tests is imported with --from nccl-tests, as it is"
	}
	if other == "" {
		return nil
	}
	return fmt.Errorf("%s: %w", name, errors.New(other))
}
