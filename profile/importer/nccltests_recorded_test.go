package importer

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// ncclTraces finds the folder of others' nccl-tests logs, or skips the test;
// with CI=true a missing folder fails it.
func ncclTraces(t testing.TB, kind string) string {
	t.Helper()
	dir := os.Getenv("EVENKEEL_DATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "data")
	}
	dir = filepath.Join(dir, "traces", kind)
	if _, err := os.Stat(dir); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("the logs are missing: %v; set EVENKEEL_DATA", err)
		}
		t.Skipf("the logs are missing: %v; set EVENKEEL_DATA to the data's folder", err)
	}
	return dir
}

// ncclFile is a file as a source.
func ncclFile(t testing.TB, path string) Source {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return Source{Name: filepath.Base(path), Size: info.Size(), Open: func() (File, error) { return os.Open(path) }}
}

// ncclLog is a text as a source.
func ncclLog(text string) Source {
	return Source{Name: "log", Size: int64(len(text)), Open: func() (File, error) { return ncclTextFile{strings.NewReader(text)}, nil }}
}

type ncclTextFile struct{ *strings.Reader }

func (ncclTextFile) Close() error { return nil }

// ncclImported is the outcome of an import.
type ncclImported struct {
	header profile.Header
	report *Report
	points []*profile.Point
}

func ncclImport(f Format, o Options, sources ...Source) (ncclImported, error) {
	var got ncclImported
	report, err := Import(f, sources, o, profile.Header{Schema: profile.RecordingSchema, Tool: "test", Created: "2026-01-01T00:00:00Z"}, func(line any) error {
		switch l := line.(type) {
		case profile.Header:
			got.header = l
		case *profile.Point:
			got.points = append(got.points, l)
		}
		return nil
	})
	got.report = report
	return got, err
}

// expectedLog is an entry of expected.json, written by an independent reader.
type expectedLog struct {
	Collective string      `json:"collective"`
	Ranks      int         `json:"nranks"`
	Interval   []float64   `json:"nranks_interval_from_table"`
	RankLines  int         `json:"rank_lines"`
	Highest    *int        `json:"highest_rank"`
	Hosts      int         `json:"hosts"`
	Device     []string    `json:"device"`
	Rows       int         `json:"rows"`
	SizeZero   int         `json:"rows_size_zero"`
	First      expectedRow `json:"first_row"`
	Last       expectedRow `json:"last_row"`
	Average    *float64    `json:"avg_busbw_printed"`
	OfRows     float64     `json:"avg_busbw_of_rows"`
	Version    *string     `json:"version"`
	Program    *string     `json:"program"`
}

type expectedRow struct {
	Size  int64        `json:"size_bytes"`
	Count int64        `json:"count"`
	Out   expectedHalf `json:"out_of_place"`
	In    expectedHalf `json:"in_place"`
}

type expectedHalf struct {
	TimeUS float64  `json:"time_us"`
	Alg    float64  `json:"algbw"`
	Bus    float64  `json:"busbw"`
	Wrong  *float64 `json:"wrong"`
}

func expectedLogs(t testing.TB, dir string) map[string]expectedLog {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "expected.json"))
	if err != nil {
		t.Fatal(err)
	}
	var logs map[string]expectedLog
	if err := json.Unmarshal(data, &logs); err != nil {
		t.Fatal(err)
	}
	return logs
}

func ncclSame(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b)) }

// The reader finds the same rows, ranks, hosts and averages as the independent
// one, in every log.
func TestNCCLReadsAsExpected(t *testing.T) {
	dir := ncclTraces(t, "nccl-tests")
	for name, want := range expectedLogs(t, dir) {
		t.Run(name, func(t *testing.T) {
			reader, done, err := openNCCL(ncclFile(t, filepath.Join(dir, name)))
			if err != nil {
				t.Fatal(err)
			}
			defer done()
			var rows []*ncclRow
			var e ncclEvidence
			table, err := reader.next(func(r *ncclRow) { rows = append(rows, r); e.row(r) })
			if err != nil {
				t.Fatal(err)
			}
			checkTable(t, table, rows, want)
			checkRow(t, rows[0], want.First)
			checkRow(t, rows[len(rows)-1], want.Last)
			k := ncclCollective(want.Collective)
			if want.Interval != nil {
				lo, hi, ok := e.ranks(k)
				if !ok || float64(lo) < want.Interval[0]-0.05 || float64(hi) > want.Interval[1]+0.05 || want.Ranks < lo || want.Ranks > hi {
					t.Errorf("the table allows %d to %d ranks (%v), want within %v", lo, hi, ok, want.Interval)
				}
			}
			if fits := e.collectives(want.Ranks); !slices.Contains(fits, k.name) {
				t.Errorf("the table fits %v, want %s among them", fits, k.name)
			}
			if _, err := reader.next(func(*ncclRow) {}); err == nil {
				t.Error("a second table, want one")
			}
		})
	}
}

func checkTable(t *testing.T, got *ncclTable, rows []*ncclRow, want expectedLog) {
	t.Helper()
	zero := 0
	for _, r := range rows {
		if r.bad != "" {
			t.Errorf("%s: %s", r.where, r.bad)
		}
		if r.size == 0 {
			zero++
		}
		if ncclElement(r.dtype) != op.F32 {
			t.Errorf("%s: type %q, want float", r.where, r.dtype)
		}
	}
	if len(rows) != want.Rows || zero != want.SizeZero {
		t.Errorf("%d rows, %d of size 0, want %d and %d", len(rows), zero, want.Rows, want.SizeZero)
	}
	if mean := got.busSum / float64(got.busN); math.Abs(mean-want.OfRows) > 6e-5 {
		t.Errorf("mean busbw %v, want %v", mean, want.OfRows)
	}
	if got.averaged != (want.Average != nil) || got.averaged && got.average != *want.Average {
		t.Errorf("printed average %v (%v), want %v", got.average, got.averaged, want.Average)
	}
	if got.ranks.lines != want.RankLines {
		t.Errorf("%d rank lines, want %d", got.ranks.lines, want.RankLines)
	}
	if want.Program != nil && programOf(*want.Program) != got.program {
		t.Errorf("program %q, want %q", got.program, *want.Program)
	}
	if want.RankLines == 0 {
		return
	}
	first := got.ranks.first()
	if got.ranks.highest != *want.Highest || len(first.hosts) != want.Hosts || !slices.Equal(sortedKeys(first.models), want.Device) {
		t.Errorf("highest rank %d, hosts %v, devices %v, want %d, %d, %v", got.ranks.highest, first.hosts, first.models, *want.Highest, want.Hosts, want.Device)
	}
}

func checkRow(t *testing.T, got *ncclRow, want expectedRow) {
	t.Helper()
	if got.size != want.Size || got.count != want.Count {
		t.Errorf("%s: size %d, count %d, want %d, %d", got.where, got.size, got.count, want.Size, want.Count)
	}
	for i, w := range []expectedHalf{want.Out, want.In} {
		h := got.halves()[i]
		if !ncclSame(h.time.value, w.TimeUS*1e-6) || !ncclSame(h.alg.value, w.Alg*1e9) || !ncclSame(h.bus.value, w.Bus*1e9) {
			t.Errorf("%s: half %d is %v s, %v, %v, want %+v", got.where, i, h.time.value, h.alg.value, h.bus.value, w)
		}
		if h.checked != (w.Wrong != nil) && w.Wrong != nil || h.checked && h.errors != *w.Wrong {
			t.Errorf("%s: half %d has errors %v (%v), want %v", got.where, i, h.errors, h.checked, w.Wrong)
		}
	}
}

// ncclOptions are what the logs of the folder do not say themselves, by file; what
// their README says of them.
func ncclOptions(name string) Options {
	switch filepath.Base(name) {
	case "a100-40g_8r_allgather_classic.log":
		return Options{Collective: "all_gather"}
	case "a100-80g_16r_allreduce_p4de_srun.log":
		return Options{Device: "a100_sxm", Link: "efa"}
	case "a100_32r_allreduce_hdr_classic.log":
		return Options{Device: "a100_sxm_40gb", Link: "infiniband"}
	case "a100_8r_sendrecv_nvswitch.log":
		return Options{Device: "a100_sxm", Ranks: 8}
	case "h100_16r_allgather_a3mega_2.17plus.log", "h100_8r_allreduce_p5_ompitag.log", "h100_96r_allreduce_coreweave_excerpt.log":
		return Options{Device: "h100_sxm"}
	case "h200_16r_allgather_a3ultra.log":
		return Options{Device: "h200_sxm"}
	case "mi355x_16r_alltoall_rccl.log", "mi355x_8r_allreduce_rccl.log":
		return Options{Device: "mi355x"}
	case "rtx5090_2r_allgather_socket_2.18.log":
		return Options{Link: "tcp", Nodes: 1}
	case "v100-32g_16r_allreduce_roce_classic.log":
		return Options{Device: "v100_sxm_32gb", Link: "roce"}
	}
	return Options{}
}

// oddLogs are the flags that the content of a log leads one to expect.
func oddLogs() map[string][]string {
	return map[string][]string{
		"a100-80g_16r_allreduce_p4de_srun.log":                {noAverage},
		"b200_2r_1node_allgather_excerpt.log":                 {noAverage, "lines were cut out"},
		"rtx5090_2r_allgather_socket_2.18.log":                {"two ranks share a GPU"},
		"unlicensed/a100-40g_16r_allreduce_partial_ranks.log": {noAverage},
		"unlicensed/a100_8r_sendrecv_nvswitch.log":            {noAverage},
		"unlicensed/h100_96r_allreduce_coreweave_excerpt.log": {"lines were cut out", "more than the header's maxBytes"},
	}
}

// Every log becomes the points that the independent reader sees, on groups of
// its ranks and nodes; those of broadcast and reduce are refused by name.
func TestNCCLImportsAsExpected(t *testing.T) {
	dir, odd := ncclTraces(t, "nccl-tests"), oddLogs()
	for name, want := range expectedLogs(t, dir) {
		t.Run(name, func(t *testing.T) {
			got, err := ncclImport(ncclTestsFormat(), ncclOptions(name), ncclFile(t, filepath.Join(dir, name)))
			kind := ncclCollective(want.Collective).kind
			if kind == "" {
				if err == nil || !strings.Contains(err.Error(), "holds "+want.Collective+" only") {
					t.Fatalf("error %v, want one that names %s", err, want.Collective)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.report.Rows != want.Rows || got.report.Points != want.Rows-want.SizeZero || len(got.points) != got.report.Points {
				t.Errorf("%d points of %d rows, want %d of %d", got.report.Points, got.report.Rows, want.Rows-want.SizeZero, want.Rows)
			}
			matchFlags(t, "flags", got.report.Flags, odd[name], true)
			if g := got.header.Groups; len(g) != 1 || g[0].Ranks() != want.Ranks || want.Hosts > 0 && want.RankLines == want.Ranks && g[0].Nodes != want.Hosts {
				t.Errorf("groups %+v, want %d ranks on %d nodes", g, want.Ranks, want.Hosts)
			}
			checkPoint(t, got.points[len(got.points)-1], kind, want)
			for _, p := range got.points {
				if err := p.Validate(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// checkPoint compares the point of the last row.
func checkPoint(t *testing.T, p *profile.Point, kind op.Kind, want expectedLog) {
	t.Helper()
	shape := op.OfMessage(kind, op.Message{Group: want.Ranks, Bytes: units.Bytes(want.Last.Size), DType: op.F32})
	times := []float64{want.Last.Out.TimeUS * 1e-6}
	if kind == op.KindAllReduce {
		times = append(times, want.Last.In.TimeUS*1e-6)
	}
	if p.Shape != shape || len(p.Times) != len(times) {
		t.Fatalf("the last point is %+v in %v s, want %+v in %v", p.Shape, p.Times, shape, times)
	}
	for i := range times {
		if !ncclSame(p.Times[i], times[i]) {
			t.Errorf("time %d of the last point is %v, want %v", i, p.Times[i], times[i])
		}
	}
}

// The JSON sample was made from the text of another log, so both give the same
// points.
func TestNCCLJSONSampleEqualsItsText(t *testing.T) {
	dir := ncclTraces(t, "nccl-tests")
	text, err := ncclImport(ncclTestsFormat(), Options{}, ncclFile(t, filepath.Join(dir, "h100_8r_allreduce_sidework.log")))
	if err != nil {
		t.Fatal(err)
	}
	sample, err := ncclImport(ncclTestsFormat(), Options{}, ncclFile(t, filepath.Join(dir, "json_format_sample", "SYNTHETIC_h100_8r_allreduce_v3.json")))
	if err != nil {
		t.Fatal(err)
	}
	if len(text.points) != len(sample.points) || len(sample.report.Flags) > 0 {
		t.Fatalf("%d points, flags %q, want %d and none", len(sample.points), sample.report.Flags, len(text.points))
	}
	for i, p := range sample.points {
		want := text.points[i]
		if p.Shape != want.Shape || !ncclSame(p.Times[0], want.Times[0]) || !ncclSame(p.Times[1], want.Times[1]) {
			t.Errorf("point %d is %+v in %v, want %+v in %v", i, p.Shape, p.Times, want.Shape, want.Times)
		}
	}
}
