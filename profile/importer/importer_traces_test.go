package importer

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// traceKind says what becomes of the files of a folder of traces.
type traceKind struct {
	pattern string // of the path below traces
	format  string // that reads it
	options Options
	points  int    // exactly; -1 where another test says which
	refused string // or part of the error or of the reason that no row is used
}

// traceKinds covers every file below traces, first match first. The points of
// nccl-tests, kineto and nvbandwidth are compared with an independent reader's in
// their own tests.
func traceKinds() []traceKind {
	onOne := Options{Device: "rtx_4090d", DType: op.F16}
	const wholeRun = "times of whole context-parallel runs"
	return []traceKind{
		{"attention/unlicensed/flash_attn2_1x4090D.csv", "table", onOne, 6, ""},
		{"attention/flash_attn_rtx4090_tvm_table.csv", "table", Options{}, 0, "rates without the batch and the heads"},
		{"cp/unlicensed/*.csv", "table", onOne, 0, "a time of several GPUs that compute and communicate at once"},
		{"cp/*.csv", "table", Options{}, 0, wholeRun},
		{"cp/*.json", "table", Options{}, 0, "is JSON, not a table"},
		{"seqlen/*.csv", "table", Options{}, 0, "a histogram of sequence lengths"},
		{"seqlen/*.json", "table", Options{}, 0, "is JSON, not a table"},
		{"topology/*.xml", "table", Options{}, 0, "is XML, such as a topology"},
		{"topology/*.txt", "table", Options{}, 0, "is a topology that nvidia-smi printed"},
		{"topology/unlicensed/*.txt", "table", Options{}, 0, "is a topology that nvidia-smi printed"},
		{"ncu/*", "table", Options{}, 0, "is output of Nsight Compute"},
		{"nccl-tests/*_broadcast_*.log", "nccl-tests", Options{}, 0, "holds broadcast only"},
		{"nccl-tests/*_reduce_*.log", "nccl-tests", Options{}, 0, "holds reduce only"},
		{"nccl-tests/*.log", "nccl-tests", Options{}, -1, ""},
		{"nccl-tests/*/*.log", "nccl-tests", Options{}, -1, ""},
		{"nccl-tests/json_format_sample/*.json", "nccl-tests", Options{}, -1, ""},
		{"kineto/*.json.gz", "kineto", Options{}, -1, ""},
		{"kineto/*/*.json.gz", "kineto", Options{}, -1, ""},
		{"nvbandwidth/*", "nvbandwidth", Options{}, -1, ""},
		{"*.md", "table", Options{}, 0, "are of no table that is known"},
		{"*/expected.json", "table", Options{}, 0, "is JSON, not a table"},
	}
}

// Every file below traces is imported or refused with the reason that its README
// leads one to expect.
func TestEveryTraceIsImportedOrRefused(t *testing.T) {
	dir := dataFolder(t, "traces")
	used := map[string]bool{}
	files := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		files++
		kinds := traceKinds()
		i := slices.IndexFunc(kinds, func(k traceKind) bool { ok, _ := filepath.Match(k.pattern, rel); return ok })
		if i < 0 {
			t.Errorf("%s: nobody said what becomes of it", rel)
			return nil
		}
		used[kinds[i].pattern] = true
		checkTrace(t, kinds[i], rel, onDisk(t, path))
		return nil
	})
	if err != nil || files < 60 {
		t.Fatal(files, err)
	}
	for _, k := range traceKinds() {
		if !used[k.pattern] {
			t.Errorf("no file is like %s", k.pattern)
		}
	}
}

func checkTrace(t *testing.T, k traceKind, rel string, src Source) {
	f, err := Lookup(k.format)
	if err != nil {
		t.Errorf("%s: %v", rel, err)
		return
	}
	if k.points < 0 {
		// Who names the wrong format is told so, or told that nothing is known.
		if _, err := importInto(tableFormat(), Options{}, src); err == nil {
			t.Errorf("%s: read as a table", rel)
		}
		// Its own format takes it, or asks for what it does not say.
		if m, err := importInto(f, k.options, src); err != nil && !errors.Is(err, ErrNothing) && !strings.Contains(err.Error(), "--") {
			t.Errorf("%s: %v, without a way out", rel, err)
		} else if err == nil && m.report.Points == 0 || errors.Is(err, ErrNothing) && len(m.report.Dropped) == 0 {
			t.Errorf("%s: nothing came of it, and nobody says why: %+v", rel, m.report)
		}
		return
	}
	m, err := importInto(f, k.options, src)
	switch why := refusal(m, err); {
	case k.refused == "" && (err != nil || m.report.Points != k.points):
		t.Errorf("%s: %v, %+v; want %d points", rel, err, m.report, k.points)
	case k.refused != "" && !strings.Contains(why, k.refused):
		t.Errorf("%s: refused for %q, want %q", rel, why, k.refused)
	}
}

// refusal is why nothing was imported: the error, or the reasons of the rows.
func refusal(m made, err error) string {
	switch {
	case errors.Is(err, ErrNothing):
		return strings.Join(m.report.reasons(), "; ")
	case err != nil:
		return err.Error()
	}
	return ""
}

// The forward times of one GPU are attention; the others of the file are not, nor
// is the row whose 4.09 ms are not its 241.179 calls a second.
func TestFlashAttentionOfOneGPU(t *testing.T) {
	path := filepath.Join(dataFolder(t, "traces"), "attention", "unlicensed", "flash_attn2_1x4090D.csv")
	m := mustImport(t, tableFormat(), Options{DType: op.BF16}, onDisk(t, path))
	want := `rtx_4090d: attn_fwd {"mask":"diag","q_len":4096,"kv_len":4096,"q_heads":16,"kv_heads":16,"head_dim":128,"dtype":"bf16","kernel":"flash_attn_2_6_3","batch":2} [0.001151]`
	if got := shapesOf(m)[0]; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if got := m.report.reasons(); !slices.Equal(got, []string{"7 forward and backward in one time: neither alone is known", "1 a row that contradicts itself"}) {
		t.Errorf("%q", got)
	}
	m, err := importInto(tableFormat(), Options{}, onDisk(t, path))
	if !errors.Is(err, ErrNothing) || !strings.Contains(strings.Join(m.report.reasons(), ";"), "the table does not name the precision; say it with --dtype") {
		t.Errorf("without a precision: %v, %q", err, m.report.reasons())
	}
}
