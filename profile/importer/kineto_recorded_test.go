package importer

import (
	"encoding/json"
	"fmt"
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

// kinetoRecordings finds the folder of others' traces, or skips the test; with
// CI=true a missing folder fails it.
func kinetoRecordings(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("EVENKEEL_DATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "data")
	}
	dir = filepath.Join(dir, "traces", "kineto")
	if _, err := os.Stat(dir); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("the traces are missing: %v; set EVENKEEL_DATA", err)
		}
		t.Skipf("the traces are missing: %v; set EVENKEEL_DATA to their folder", err)
	}
	return dir
}

func traceFile(path string) Source {
	return Source{Name: filepath.Base(path), Open: func() (File, error) { return os.Open(path) }}
}

// expectedTrace is what an independent reader found in a trace.
type expectedTrace struct {
	Device    []string `json:"device"`
	World     *int64   `json:"world_size"`
	Rank      *int64   `json:"rank"`
	Events    int      `json:"events"`
	Kernels   int      `json:"gpu_kernels"`
	Attention []struct {
		Kernel   string    `json:"kernel"`
		Op       *string   `json:"op"`
		Dims     [][]int64 `json:"qkv_dims"`
		DType    string    `json:"dtype"`
		Concrete []string  `json:"concrete"`
		N        int       `json:"n"`
		MedianUs float64   `json:"median_us"`
		MinUs    float64   `json:"min_us"`
		MaxUs    float64   `json:"max_us"`
		SumUs    float64   `json:"sum_us"`
	} `json:"attention"`
	Links       map[string]int `json:"collective_link"`
	Collectives []struct {
		Kernel   string  `json:"kernel"`
		Meta     []any   `json:"meta"`
		N        int     `json:"n"`
		MinUs    float64 `json:"min_us"`
		MedianUs float64 `json:"median_us"`
		MaxUs    float64 `json:"max_us"`
	} `json:"collectives"`
}

func expectedTraces(t *testing.T, dir string) map[string]expectedTrace {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "expected.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]expectedTrace
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// importTraces runs an import and returns its report and points.
func importTraces(t *testing.T, o Options, sources ...Source) (*Report, []*profile.Point, error) {
	t.Helper()
	var points []*profile.Point
	report, err := Import(kinetoFormat(), sources, o, profile.Header{}, func(line any) error {
		if p, ok := line.(*profile.Point); ok {
			points = append(points, p)
		}
		return nil
	})
	return report, points, err
}

func TestKinetoExpected(t *testing.T) {
	dir := kinetoRecordings(t)
	for name, want := range expectedTraces(t, dir) {
		t.Run(name, func(t *testing.T) {
			got, err := readTrace(traceFile(filepath.Join(dir, name)))
			if err != nil || got.torn != "" {
				t.Fatal(err, got.torn)
			}
			expectHead(t, got, want)
			expectAttention(t, got, want)
			expectCollectives(t, got, want)
		})
	}
}

func expectHead(t *testing.T, got *trace, want expectedTrace) {
	if got.ids.kernels != want.Kernels {
		t.Errorf("%d kernels, want %d", got.ids.kernels, want.Kernels)
	}
	for _, d := range got.head.devices {
		if d.name != want.Device[0] {
			t.Errorf("device %q, want %q", d.name, want.Device)
		}
	}
	if want.World != nil && (got.head.world != *want.World || got.head.rank != *want.Rank) {
		t.Errorf("rank %d of %d, want %d of %d", got.head.rank, got.head.world, *want.Rank, *want.World)
	}
}

// expectAttention compares the calls of each shape: their number, and shortest,
// longest and summed time.
func expectAttention(t *testing.T, got *trace, want expectedTrace) {
	times := map[string][]float64{}
	for _, o := range got.ops {
		if o.kernels > 0 && !o.call.gemm {
			shape, reason := o.call.shape(o.kernel)
			if reason != "" {
				t.Errorf("event %d: %s", o.event, reason)
				continue
			}
			key := attentionKey(shape.(op.AttnFwd).Attention)
			times[key] = append(times[key], o.took)
		}
	}
	rows := 0
	for _, w := range want.Attention {
		if w.Op == nil {
			rows := 0
			for _, l := range got.loose {
				rows += l.rows
			}
			if rows != w.N {
				t.Errorf("%d attention kernels without op, want %d", rows, w.N)
			}
			continue
		}
		rows++
		q, kv := w.Dims[0], w.Dims[1]
		a := op.Attention{
			Mask: op.Full, QLen: units.Tokens(q[1]), KVLen: units.Tokens(kv[1]), QHeads: int(q[2]), KVHeads: int(kv[2]), HeadDim: int(q[3]),
			DType: operandType(w.DType), Kernel: map[string]string{"attn_fwd": "aotriton", "pytorch_flash::flash_fwd_kernel": "fa2"}[w.Kernel],
		}
		if w.Concrete[3] == "True" {
			a.Mask = op.Diag
		}
		if q[0] > 1 {
			a.Batch = int(q[0])
		}
		us := times[attentionKey(a)]
		if len(us) != w.N || !near(slices.Min(us), w.MinUs) || !near(slices.Max(us), w.MaxUs) || !near(sum(us), w.SumUs) {
			t.Errorf("%s: %d calls of %.4g to %.4g us, want %d of %.4g to %.4g", attentionKey(a), len(us), slices.Min(us), slices.Max(us), w.N, w.MinUs, w.MaxUs)
		}
	}
	if rows != len(times) {
		t.Errorf("%d shapes of attention, want %d: %v", len(times), rows, times)
	}
}

func attentionKey(a op.Attention) string { return fmt.Sprintf("%+v", a) }

// near allows for what the expected values were rounded to.
func near(a, b float64) bool { return math.Abs(a-b) < 2e-3 }

func sum(all []float64) float64 {
	total := 0.0
	for _, v := range all {
		total += v
	}
	return total
}

// expectCollectives compares the kernels of each collective.
func expectCollectives(t *testing.T, got *trace, want expectedTrace) {
	links, times := map[string]int{}, map[string][]float64{}
	for _, k := range got.comms {
		links[k.link]++
		key := "nothing"
		if k.args != nil {
			key = fmt.Sprintf("%s of %d %s", k.args.kind, k.args.in, k.args.dtype)
		}
		times[key] = append(times[key], k.took*1e6)
	}
	for link, n := range want.Links {
		if links[link] != n {
			t.Errorf("%d collectives by %s, want %d; all: %v", links[link], link, n, links)
		}
	}
	for _, w := range want.Collectives {
		key := "nothing"
		switch {
		case len(w.Meta) > 3:
			kind, _ := collective(w.Meta[0].(string))
			key = fmt.Sprintf("%s of %.0f %s", kind, w.Meta[1], messageType(w.Meta[3].(string)))
		case len(w.Meta) > 0:
			kind, _ := collective(strings.TrimPrefix(w.Meta[0].(string), "nccl:"))
			elements := w.Meta[1].([]any)[0].([]any)[0]
			key = fmt.Sprintf("%s of %.0f %s", kind, elements, messageType(w.Meta[2].([]any)[0].(string)))
		}
		us := times[key]
		if len(us) != w.N || !near(slices.Min(us), w.MinUs) || !near(slices.Max(us), w.MaxUs) {
			t.Errorf("%s: %v us, want %d of %.4g to %.4g", key, us, w.N, w.MinUs, w.MaxUs)
		}
	}
}
