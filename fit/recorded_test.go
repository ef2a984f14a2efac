package fit

import (
	"encoding/csv"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// recorded is the points of one law of one table of others' recordings.
type recorded struct {
	name   string // "h100_sxm/vllm attn_fwd (diag d128 bf16 vllm_flash_attn_fa3)"
	device op.DeviceType
	group  op.GroupType // of a collective
	points []Point
}

// recordings finds the folder of others' recordings, or skips the test; with
// CI=true a missing folder fails it.
func recordings(t testing.TB) string {
	dir := os.Getenv("EVENKEEL_DATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "shared", "data")
	}
	if _, err := os.Stat(dir); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("the recordings are missing: %v; set EVENKEEL_DATA", err)
		}
		t.Skipf("the recordings are missing: %v; set EVENKEEL_DATA to their folder", err)
	}
	return filepath.Join(dir, "recorded")
}

// tables reads the CSV files below the recordings' folder that match a pattern
// such as "aiconfigurator/*/gemm_*.csv" and groups their rows by law. Repeats
// become the visits of one point.
func tables(t testing.TB, pattern string) []recorded {
	dir := recordings(t)
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no table matches %s: %v", pattern, err)
	}
	devices := map[string]op.DeviceType{}
	for _, row := range readCSV(t, filepath.Join(dir, "aiconfigurator", "devices.csv")) {
		devices[row["gpu"]] = deviceOf(t, row)
	}
	var all []recorded
	for _, file := range files {
		byName := map[string]*recorded{}
		where := map[string]int{}
		for _, row := range readCSV(t, file) {
			shape, lib := shapeOf(t, row)
			if shape == nil {
				continue
			}
			name := fmt.Sprintf("%s/%s %s (%s)", row["gpu"], lib, shape.Kind(), shape.Variant())
			if g, ok := shape.(op.Grouped); ok {
				name += fmt.Sprintf(" %d ranks", g.Ranks())
			}
			r := byName[name]
			if r == nil {
				r = &recorded{name: name, device: devices[row["gpu"]]}
				byName[name] = r
				if g, ok := shape.(op.Grouped); ok {
					link := "nvlink"
					if d := r.device.Sheet; d.LinkPerS <= d.HostPerS {
						link = "pcie"
					}
					r.group = op.NewGroupType([]op.Member{{Device: row["gpu"], Count: g.Ranks()}}, 1, link)
				}
			}
			key := profile.NewSpot(name, shape).Key("")
			seconds := number(t, row, "latency_us") * 1e-6
			if i, ok := where[key]; ok {
				r.points[i].visits = append(r.points[i].visits, seconds)
				r.points[i].Seconds = stats.Median(r.points[i].visits)
				continue
			}
			where[key] = len(r.points)
			r.points = append(r.points, Point{On: name, Shape: shape, Key: key, Seconds: seconds, visits: []float64{seconds}, rank: hashOf(key)})
		}
		var names []string
		for n := range byName {
			names = append(names, n)
		}
		sort.Strings(names)
		for _, n := range names {
			all = append(all, *byName[n])
		}
	}
	return all
}

func readCSV(t testing.TB, path string) []map[string]string {
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := csv.NewReader(f)
	head, err := r.Read()
	if err != nil {
		t.Fatal(err)
	}
	var rows []map[string]string
	for {
		cells, err := r.Read()
		if err == io.EOF {
			return rows
		}
		if err != nil {
			t.Fatal(err)
		}
		row := map[string]string{}
		for i, c := range cells {
			row[head[i]] = c
		}
		rows = append(rows, row)
	}
}

func number(t testing.TB, row map[string]string, key string) float64 {
	v, err := strconv.ParseFloat(row[key], 64)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return v
}

func deviceOf(t testing.TB, row map[string]string) op.DeviceType {
	l2 := map[string]units.Bytes{"a100": 40, "a30": 24, "b200": 126, "b300": 126, "gb200": 126, "gb300": 126, "h100": 50, "h200": 50, "l4": 48, "l40s": 96, "rtx": 128, "b60": 18}
	family, _, _ := strings.Cut(row["gpu"], "_")
	return op.DeviceType{
		Name: row["gpu"], Model: row["gpu"], Fingerprint: row["gpu"], Parallel: int(number(t, row, "sm_count_not_from_source")),
		Memory: units.Bytes(number(t, row, "datasheet_mem_gib") * (1 << 30)),
		Sheet: op.Sheet{
			BF16PerS: number(t, row, "datasheet_bf16_tflops") * 1e12, FP8PerS: number(t, row, "datasheet_fp8_tflops") * 1e12,
			MemoryPerS: number(t, row, "datasheet_mem_bw_gbytes_per_s") * 1e9, L2: l2[family] << 20,
			LinkPerS: number(t, row, "intra_node_gbytes_per_s_per_gpu_one_way") * 1e9, NetPerS: number(t, row, "inter_node_gbytes_per_s_per_gpu_one_way") * 1e9,
			HostPerS: number(t, row, "pcie_gbytes_per_s_one_way") * 1e9, Arch: "sm" + strings.TrimSuffix(row["sm_version"], ".0"),
		},
	}
}

// shapeOf reads the shape of a row and the library it was measured with; nil
// for a row of the decode kernel.
func shapeOf(t testing.TB, row map[string]string) (op.Shape, string) {
	integer := func(key string) int { return int(number(t, row, key)) }
	switch {
	case row["heads"] != "":
		if row["seq_q"] == "1" && row["causal"] == "1" {
			return nil, ""
		}
		a := op.Attention{
			Mask: op.Full, QLen: units.Tokens(integer("seq_q")), KVLen: units.Tokens(integer("seq_kv")), QHeads: integer("heads"), KVHeads: integer("kv_heads"),
			HeadDim: integer("head_dim"), DType: op.DType(row["dtype"]), Kernel: row["kernel"],
		}
		if row["causal"] == "1" {
			a.Mask, a.Window = op.Diag, units.Tokens(integer("window"))
		}
		if b := integer("batch"); b > 1 {
			a.Batch = b
		}
		return op.AttnFwd{Attention: a}, row["framework"]
	case row["k"] != "":
		return op.GEMM{Pass: op.Forward, M: units.Tokens(integer("m")), N: integer("n"), K: integer("k"), DType: op.DType(row["dtype"])}, row["framework"]
	}
	kind := op.Kind(strings.Replace(row["collective"], "alltoall", "all_to_all", 1))
	dtype := map[string]op.DType{"fp16": op.F16, "int8": op.I8, "bf16": op.BF16}[row["dtype"]]
	lib := row["library"] + "-" + row["library_version"]
	if row["mode"] != "" {
		lib = row["framework"] + "-" + row["mode"]
	}
	return op.OfMessage(kind, op.Message{Group: integer("num_gpus"), Bytes: units.Bytes(integer("message_bytes")), DType: dtype}), lib
}

func hashOf(key string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(key))
	return h.Sum64()
}

// The ways to keep points from a fit: each says whether a point is held out.
var (
	// quarter holds every fourth point out at random: shapes between measured ones.
	quarter = func([]Point) func(Point) bool {
		return func(p Point) bool { return p.rank%4 == 0 }
	}
	// newHeads holds three head counts out.
	newHeads = func([]Point) func(Point) bool {
		return func(p Point) bool {
			h := p.Shape.(op.AttnFwd).QHeads
			return h == 24 || h == 40 || h == 96 || h == 10 || h == 20
		}
	}
	// longer holds what is more than a quarter of the longest sequence out.
	longer = beyond(0, 0.25)
	// taller holds GEMMs of more than a quarter of the most rows out.
	taller = beyond(0, 0.25)
	// bigger holds messages of more than an eighth of the largest out.
	bigger = beyond(0, 0.125)
)

func beyond(axis int, share float64) func([]Point) func(Point) bool {
	return func(points []Point) func(Point) bool {
		most := 0.0
		for _, p := range points {
			most = max(most, p.Shape.(op.Located).Coords()[axis])
		}
		return func(p Point) bool { return p.Shape.(op.Located).Coords()[axis] > share*most*1.001 }
	}
}

// divide keeps the held-out points of a table from the others.
func divide(points []Point, by func([]Point) func(Point) bool) (train, test []Point) {
	held := by(points)
	for _, p := range points {
		if held(p) {
			test = append(test, p)
		} else {
			train = append(train, p)
		}
	}
	return train, test
}

// score is |predicted/measured - 1| in percent over points.
type score struct {
	n                 int
	mape, median, p95 float64
}

func scoreOf(predict func(op.Shape) float64, test []Point) score {
	var errs []float64
	sum := 0.0
	for _, p := range test {
		e := 100 * math.Abs(predict(p.Shape)/p.Seconds-1)
		errs, sum = append(errs, e), sum+e
	}
	if len(errs) == 0 {
		return score{}
	}
	slices.Sort(errs)
	return score{len(errs), sum / float64(len(errs)), stats.Median(errs), stats.Quantile(errs, 0.95)}
}

// medianScore is the median over tables of each figure.
func medianScore(all []score) score {
	var a, b, c []float64
	n := 0
	for _, s := range all {
		if s.n > 0 {
			a, b, c, n = append(a, s.mape), append(b, s.median), append(c, s.p95), n+s.n
		}
	}
	return score{n, stats.Median(a), stats.Median(b), stats.Median(c)}
}

func TestRecordedTablesAreWhatTheirReadmeSays(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	for pattern, want := range map[string]int{"aiconfigurator/*/*attention*.csv": 50, "aiconfigurator/*/gemm_*.csv": 7, "aiconfigurator/*/nccl.csv": 20} {
		all := tables(t, pattern)
		if len(all) < want {
			t.Errorf("%s: %d tables, want at least %d", pattern, len(all), want)
		}
		for _, r := range all {
			if train, test := divide(r.points, quarter); len(train) == 0 {
				t.Errorf("%s: %d points to fit, %d held out", r.name, len(train), len(test))
			}
		}
	}
}
