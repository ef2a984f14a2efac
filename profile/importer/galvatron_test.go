package importer

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

func TestGalvatron(t *testing.T) {
	text := `{"sp": {"allreduce_size_8_16MB_time": 0.2941, "all2all_size_4_1MB_time": 0.05}, "allreduce_size_2_1024MB_time": 12,
		"allreduce_size_8_consec_1": 160.4, "pp_size_2": 147.3, "overlap_coe": 1.15, "layernum[2]_bsz1_seq2048": 15.0786, "layertype_0": 4.4,
		"layertype_0_sp_memory": {"tp_activation_per_bsz_dict": {"1": 600.2}}, "x": "text", "allreduce_size_16_1MB_time": 1, "allreduce_size_1_1MB_time": 1,
		"allreduce_size_4_1MB_time": 0, "allreduce_size_4_0MB_time": 1, "a": [1, null]}`
	if _, err := importInto(galvatronFormat(), Options{}, inMemory("g.json", text)); err == nil || err.Error() != `g.json: "allreduce_size_8_16MB_time": the file does not name its GPU; say it with --device` {
		t.Errorf("without a GPU: %v", err)
	}
	m := mustImport(t, galvatronFormat(), Options{Device: "A100-SXM4-80GB"}, inMemory("g.json", text))
	want := []string{
		`8 a100_sxm/galvatron over nvlink: all_reduce {"group":8,"bytes":16777216} [0.0002941]`,
		`4 a100_sxm/galvatron over nvlink: all_to_all {"group":4,"bytes":1048576} [5e-05]`,
		`2 a100_sxm/galvatron over nvlink: all_reduce {"group":2,"bytes":1073741824} [0.012]`,
	}
	if got := shapesOf(m); !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	reasons := []string{
		"2 a bandwidth without the size of its message, in MiB/ms or GB/s as the writer's version had it: no time can be told from it",
		"2 the time of a whole model, embeddings included: no op's time can be told from it",
		"2 text, true, false, null or NaN where a number belongs",
		"1 a slow-down of overlapping without the shapes that overlapped", "1 a key that no op's time stands under",
		"1 more GPUs than a node of a100_sxm has (8); say how many nodes with --nodes", "1 a collective of fewer than two ranks",
		"1 a time that is no positive number", "1 the shape's bytes is not possible", "1 a number that stands under no key of its own, or is too large",
	}
	if got := m.report.reasons(); !slices.Equal(got, reasons) {
		t.Errorf("%q\nwant %q", got, reasons)
	}
	m = mustImport(t, galvatronFormat(), Options{Device: "a100_sxm", Stack: "torch-2.1", Nodes: 2, DType: op.BF16}, inMemory("g.json", `{"allreduce_size_16_1MB_time": 1}`))
	if got := shapesOf(m)[0]; got != `16 a100_sxm/torch-2.1 over nvlink on 2 nodes: all_reduce {"group":16,"bytes":1048576,"dtype":"bf16"} [0.001]` {
		t.Error(got)
	}
}

// Of a profile of two nodes, the smaller groups are inside one: their ranks follow
// each other.
func TestGalvatronNodes(t *testing.T) {
	text := `{"allreduce_size_2_1MB_time": 0.1, "all2all_size_8_1MB_time": 0.2, "allreduce_size_16_1MB_time": 0.3, "allreduce_size_4_consec_0": 5}`
	m := mustImport(t, galvatronFormat(), Options{Device: "a100_sxm", Nodes: 2}, inMemory("g.json", text))
	want := []string{
		`2 a100_sxm/galvatron over nvlink: all_reduce {"group":2,"bytes":1048576} [0.0001]`,
		`8 a100_sxm/galvatron over nvlink: all_to_all {"group":8,"bytes":1048576} [0.0002]`,
		`16 a100_sxm/galvatron over nvlink on 2 nodes: all_reduce {"group":16,"bytes":1048576} [0.0003]`,
	}
	if got := shapesOf(m); !slices.Equal(got, want) || m.report.Rows != 4 {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Python's json writes NaN where a mean is of nothing; the other times are used.
func TestGalvatronNaN(t *testing.T) {
	m := mustImport(t, galvatronFormat(), Options{Device: "a100_sxm"}, inMemory("g.json", `{"allreduce_size_8_16MB_time": NaN, "allreduce_size_4_16MB_time": 0.2}`))
	want := []string{`4 a100_sxm/galvatron over nvlink: all_reduce {"group":4,"bytes":16777216} [0.0002]`}
	if got := shapesOf(m); !slices.Equal(got, want) || m.report.Rows != 2 || m.report.Points != 1 {
		t.Errorf("%q of %d rows", got, m.report.Rows)
	}
}

func TestGalvatronRefusals(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "x: ends in the middle of its JSON object",
		"{":                          "x: ends in the middle of its JSON object",
		`{"a": 1`:                    "x: ends in the middle of its JSON object",
		"[]":                         "x: not a JSON object of profiled numbers: it begins with something else than {",
		"gpu,m,n":                    "x: not a JSON object of profiled numbers: it begins with something else than {; a table (CSV) is imported with --from table",
		`{"a": 1} {"b": 2}`:          "x: not a JSON object of profiled numbers: text after the end of the object",
		`{"a": 1, "a": 2}`:           "x: not a JSON object of profiled numbers: ",
		strings.Repeat(`{"a":`, 100): "x: nested deeper than 16 levels",
	} {
		if _, err := importInto(galvatronFormat(), Options{Device: "a100_sxm"}, inMemory("x", text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.40q: %v, want %s", text, err, want)
		}
	}
	// Bandwidths alone are no recording, and the report says why.
	m, err := importInto(galvatronFormat(), Options{Device: "a100_sxm"}, inMemory("x", `{"allreduce_size_8_consec_1": 160.4}`))
	if !errors.Is(err, ErrNothing) || len(m.report.Dropped) != 1 || !strings.Contains(m.report.Dropped[0].Reason, "MiB/ms or GB/s") {
		t.Errorf("%v, %+v", err, m.report)
	}
	huge := inMemory("x", "{}")
	huge.Size = galvatronMost + 1
	if _, err := importInto(galvatronFormat(), Options{}, huge); err == nil || !strings.Contains(err.Error(), "a profile of Galvatron has at most 64 MiB") {
		t.Error(err)
	}
}

func FuzzGalvatron(f *testing.F) {
	f.Add(`{"sp": {"allreduce_size_8_16MB_time": 0.2941}, "overlap_coe": 1.15, "a": [1, null]}`)
	f.Fuzz(func(t *testing.T, text string) { importAnything(t, galvatronFormat(), text) })
}
