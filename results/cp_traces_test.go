package results

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gonum.org/v1/gonum/stat"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile/importer"
	"github.com/evenkeel/evenkeel/results/profiles"
)

// cpTable is one of others' tables of context-parallel attention, the GPU that it
// is predicted for, and what was measured of one such GPU alone: seconds over a
// causal square of `tokens` with `batch` sequences, forward and with backward.
type cpTable struct {
	file, title, device, link string
	tokens                    units.Tokens
	batch                     int
	alone                     map[int][2]float64 // by q_heads
	clean                     bool               // judged; the others are shown with the cause of their error
	cause                     string
}

// Rates of one GPU stand in the tables' own column flash_1gpu_iters_per_s and, for
// the RTX 4090D, in traces/attention/unlicensed/flash_attn2_1x4090D.csv (batch 2,
// 16,384 tokens).
func cpTables() []cpTable {
	a100 := map[int][2]float64{5: {1 / 1545.9, 1 / 470.6}, 32: {1 / 373.4, 1 / 94.7}}
	return []cpTable{
		{
			"ring_flash_attention_8xA100.csv", "8 A100, NVLink", "a100_sxm", "nvlink", 8192, 1, a100, true,
			"stripe is no layout of ours: every rank holds every eighth token, so that each of its blocks is half masked",
		},
		{
			"ring_flash_attention_issue_A800.csv", "8 A800, NVLink at 200 GB/s", "a800_sxm", "nvlink_a800", 8192, 1,
			map[int][2]float64{5: {1 / 1545.9, 1 / 464.177}},
			false,
			"a user's run of another commit with nothing stated but GPU and rates (heads and pass are inferred); at these sizes the messages hide behind the blocks even at half the A100's rate, so the links do not explain that zigzag is a third slower there than on A100",
		},
		{
			"unlicensed/ring_stripe_ulysses_8x4090D.csv", "8 RTX 4090D, PCIe", "rtx_4090d", "pcie4", 16384, 2,
			map[int][2]float64{16: {15.733e-3, 56.318e-3}},
			false,
			"GeForce cards have no peer-to-peer: every message is staged through host memory that all eight share, which neither the datasheet's PCIe rate nor one port a GPU tells; the error is smallest at the longest sequences, where blocks outweigh messages",
		},
		{
			"unlicensed/usp_8x4090D.csv", "8 RTX 4090D, PCIe, USP", "rtx_4090d", "pcie4", 16384, 2,
			map[int][2]float64{16: {15.733e-3, 56.318e-3}},
			false,
			"as above; basic is a contiguous ring, stripe is no layout of ours",
		},
	}
}

// notPredicted are the tables of the folder that no plan of ours describes.
func notPredicted() [][2]string {
	return [][2]string{
		{"ring_flash_attention_varlen_8xA100.csv", "packed documents of many lengths under one ring"},
		{"usp_vs_ulysses_4x4090.csv", "mask, precision, passes and whose sequence length it is are not stated"},
		{"flux_4x4090_cp.csv", "a whole image model's iteration under bidirectional attention"},
	}
}

// cpRow is a row of a table.
type cpRow struct {
	impl, pass      string
	gpus, batch     int
	ringOf, headsOf int // degrees of ring and all-to-all
	seqLen          units.Tokens
	qHeads, kvHeads int
	headDim         int
	measured        float64 // seconds
	predicted       float64 // 0 where no layout of ours is meant
}

func (r cpRow) error() float64 { return r.predicted/r.measured - 1 }

// cpFolder is where the tables lie; the test skips without them, or fails in CI.
func cpFolder(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("EVENKEEL_DATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "shared", "data")
	}
	dir = filepath.Join(dir, "traces", "cp")
	if _, err := os.Stat(dir); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("the recordings are missing: %v; set EVENKEEL_DATA", err)
		}
		t.Skipf("the recordings are missing: %v; set EVENKEEL_DATA to their folder", err)
	}
	return dir
}

func readCP(t *testing.T, path string) []cpRow {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r := csv.NewReader(bytes.NewReader(data))
	r.FieldsPerRecord = -1
	lines, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var rows []cpRow
	for _, l := range lines[1:] {
		get := func(name, missing string) string {
			if i := slices.Index(lines[0], name); i >= 0 {
				return l[i]
			}
			return missing
		}
		number := func(name, missing string) int {
			v, err := strconv.Atoi(get(name, missing))
			if err != nil {
				t.Fatalf("%s: %s: %v", path, name, err)
			}
			return v
		}
		ms, err := strconv.ParseFloat(get("ms_per_iter", ""), 64)
		if err != nil {
			t.Fatal(err)
		}
		pass := "fwd+bwd"
		if get("pass", "") == "fwd" || get("fwd_only", "") == "1" {
			pass = "fwd"
		}
		rows = append(rows, cpRow{
			impl: get("impl", ""), pass: pass, gpus: number("n_gpus", ""), batch: number("batch", "1"),
			ringOf: number("ring_degree", get("n_gpus", "")), headsOf: number("ulysses_degree", "1"),
			seqLen: units.Tokens(number("seqlen_total", "")), qHeads: number("q_heads", ""), kvHeads: number("kv_heads", get("q_heads", "")),
			headDim: number("head_dim", ""), measured: ms / 1e3,
		})
	}
	return rows
}

// cpProfile has the laws of a table's GPU: the reference's, or what is carried
// over from it. Attention laws are slowed so that one GPU takes the measured
// times, one factor a pass: kernel and software are others than the reference's,
// and this is all that is taken from the table.
func cpProfile(t *testing.T, k cpTable, heads int) (*costmodel.Profile, string) {
	t.Helper()
	ref, err := profiles.Lookup("a100_sxm")
	if err != nil {
		t.Fatal(err)
	}
	p := profiles.Merge([]profiles.Reference{ref})
	for _, m := range importer.Models() {
		if m.Name == k.device && k.device != "a100_sxm" {
			b, err := fit.Borrowed(m.Of("borrowed"), fit.Donors(ref.Profile))
			if err != nil {
				t.Fatal(err)
			}
			fit.Assume(b)
			p.Devices, p.Laws = append(p.Devices, b.Devices...), append(p.Laws, b.Laws...)
		}
	}
	device, err := costmodel.Cluster{Nodes: []costmodel.Node{{Name: "n0", Devices: []op.Member{{Device: k.device, Count: 1}}}}}.Resolve(p, "", "")
	if err != nil {
		t.Fatal(err)
	}
	name := device.Nodes[0].Devices[0].Device
	a := op.Attention{Mask: op.Diag, QLen: k.tokens, KVLen: k.tokens, QHeads: heads, KVHeads: heads, HeadDim: 128, DType: op.BF16}
	if heads == 32 && k.batch == 1 {
		a.KVHeads = 8 // the tables' only GQA shape
	}
	a.QHeads, a.KVHeads = a.QHeads*k.batch, a.KVHeads*k.batch
	q := costmodel.NewCallPredictor(p)
	scaled := *p
	scaled.Laws = slices.Clone(p.Laws)
	alone := k.alone[heads]
	for kind, want := range map[op.Kind]float64{op.KindAttnFwd: alone[0], op.KindAttnBwd: alone[1] - alone[0]} {
		var s op.Shape = op.AttnFwd{Attention: a}
		if kind == op.KindAttnBwd {
			s = op.AttnBwd{Attention: a}
		}
		e, err := q.Time(name, s)
		if err != nil {
			t.Fatal(err)
		}
		for i := range scaled.Laws {
			if l := &scaled.Laws[i]; l.Device == name && l.Op == kind {
				*l = l.Slowed(want / float64(e.Mid))
			}
		}
	}
	return &scaled, name
}

// predictCP simulates a row. A batch is taken as so many times the heads: as much
// to compute and to move.
func predictCP(t *testing.T, k cpTable, row cpRow) float64 {
	t.Helper()
	p, device := cpProfile(t, k, row.qHeads)
	c := costmodel.Cluster{Nodes: []costmodel.Node{{Name: "n0", Link: k.link, Devices: []op.Member{{Device: device, Count: row.gpus}}}}, Links: mixedLinks()}
	c, err := c.Resolve(p, "", "")
	if err != nil {
		t.Fatal(err)
	}
	q, kv := row.qHeads*row.batch, row.kvHeads*row.batch
	job := costmodel.Job{
		Model:   costmodel.Model{Name: "attention", Layers: 1, Hidden: q * row.headDim, FFN: 4 * q * row.headDim, QHeads: q, KVHeads: kv, HeadDim: row.headDim, Vocab: 32000, GatedMLP: true},
		Cluster: c, SeqLen: row.seqLen, DType: op.BF16, Recompute: costmodel.RecomputeNone, RingBuffers: 2, LossChunk: 1024,
	}
	tokens := make([]units.Tokens, row.gpus)
	var groups []costmodel.Group
	for r := range tokens {
		tokens[r] = row.seqLen / units.Tokens(row.gpus)
		if r%row.headsOf == 0 {
			groups = append(groups, nil)
		}
		g := len(groups) - 1
		groups[g] = append(groups[g], costmodel.HeadShare{Rank: r, QHeads: q / row.headsOf})
	}
	layout := costmodel.ZigZag(tokens, groups)
	switch row.impl {
	case "ring", "usp basic":
		layout = costmodel.Contiguous(tokens, groups)
	case "zigzag_ring", "ulysses", "usp zigzag":
	default:
		return 0
	}
	s, err := costmodel.NewSimulator(costmodel.NewCallPredictor(costmodel.AssumeLinks(p, c)), job)
	if err != nil {
		t.Fatal(err)
	}
	forward, backward, err := s.Attention(layout)
	if err != nil {
		t.Fatal(err)
	}
	if row.pass == "fwd" {
		return float64(forward)
	}
	return float64(forward + backward)
}

// cleanLimit is the error that no ring or zigzag row of the cleanest tables may
// exceed.
const cleanLimit = 0.15

// TestContextParallelTimings predicts others' timings of attention over several
// GPUs and holds the page over them.
func TestContextParallelTimings(t *testing.T) {
	dir := cpFolder(t)
	var page bytes.Buffer
	io.WriteString(&page, cpIntroduction)
	for _, k := range cpTables() {
		rows := readCP(t, filepath.Join(dir, k.file))
		for i := range rows {
			rows[i].predicted = predictCP(t, k, rows[i])
			if x := rows[i]; k.clean && x.predicted > 0 && math.Abs(x.error()) > cleanLimit {
				t.Errorf("%s: %s %s with %d heads: measured %.4g s, predicted %.4g s (%+.1f %%): want within %.0f %%", k.file, x.impl, x.pass, x.qHeads, x.measured, x.predicted, 100*x.error(), 100*cleanLimit)
			}
		}
		cpSection(&page, k, rows)
	}
	fmt.Fprint(&page, "## Not predicted\n\n| table | why |\n|---|---|\n")
	for _, n := range notPredicted() {
		if _, err := os.Stat(filepath.Join(dir, n[0])); err != nil {
			t.Error(err)
		}
		fmt.Fprintf(&page, "| %s | %s |\n", n[0], n[1])
	}
	path := filepath.Join("evidence", "context_parallel", "README.md")
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want := contents(t, path); !bytes.Equal(want, page.Bytes()) {
		t.Errorf("%s differs from what the simulator predicts now; make it again: go test ./results -run TestContextParallelTimings -update", path)
	}
}

func cpSection(w io.Writer, k cpTable, rows []cpRow) {
	fmt.Fprintf(w, "## %s (%s)\n\n", k.title, k.file)
	fmt.Fprint(w, "| layout | pass | ring x heads | batch | tokens | q_heads/kv_heads | measured, ms | predicted, ms | error |\n|---|---|---|---|---|---|---|---|---|\n")
	var errs []float64
	skipped := map[string]bool{}
	for _, r := range rows {
		if r.predicted == 0 {
			skipped[r.impl] = true
			continue
		}
		errs = append(errs, math.Abs(r.error()))
		fmt.Fprintf(w, "| %s | %s | %dx%d | %d | %d | %d/%d | %.2f | %.2f | %+.1f %% |\n", r.impl, r.pass, r.ringOf, r.headsOf, r.batch, int(r.seqLen), r.qHeads, r.kvHeads, 1e3*r.measured, 1e3*r.predicted, 100*r.error())
	}
	fmt.Fprintf(w, "\nMean error %.1f %%, largest %.1f %%.", 100*stat.Mean(errs, nil), 100*slices.Max(errs))
	if len(skipped) > 0 {
		fmt.Fprintf(w, " Not predicted: %s.", strings.Join(sortedNames(skipped), ", "))
	}
	fmt.Fprintf(w, " Note: %s.\n\n", k.cause)
}

func sortedNames(set map[string]bool) []string {
	var names []string
	for n := range set {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

const cpIntroduction = `# The simulator against others' timings of context-parallel attention

Measured by others on up to eight GPUs, predicted by the simulator of a step
(costmodel, attention alone, no linear work). Kernels and software are others than
those of the reference profiles, so one number a pass is taken from each table: what
one GPU alone takes over a causal square. Everything else (how blocks of other shapes
compare, adding results and gradients up, messages, all-to-alls, waiting) is the
reference's laws and the simulator. Rows of ring and zigzag of the A100 table must be
within 15 %; the other tables are shown with the cause of their error. Those rings pass
every block to every GPU; the simulator passes the blocks of contiguous shards ("ring")
no farther than to the last GPU that needs them, which changes no row of the A100.

Sources: ring-flash-attention (MIT) and issue 18 there; AI_analysis by ifromeast
(facts of an unlicensed page). How to redo it:
go test ./results -run TestContextParallelTimings -update

`
