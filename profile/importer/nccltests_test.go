package importer

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// writtenLog writes logs as nccl-tests does, from sizes and times.
type writtenLog struct {
	kind    string // collective
	n       int
	bytes   int // of an element
	dtype   string
	id      string // what stands between type and time, such as "sum      -1"
	checks  [2]string
	columns string // of a half, after busbw
	extra   string // after each half's check
}

func written(kind string, n int) writtenLog {
	l := writtenLog{kind: kind, n: n, bytes: 4, dtype: "float", id: "none      -1", checks: [2]string{"0", "0"}, columns: "#wrong"}
	switch kind {
	case "all_reduce", "reduce_scatter":
		l.id = "sum      -1"
	case "alltoall", "sendrecv":
		l.checks[1] = "N/A"
	}
	return l
}

func (l writtenLog) head() string {
	half := "     time   algbw   busbw " + l.columns
	return "#\n#                        out-of-place            in-place\n#   size   count   type   redop   root" + half + half + "\n#    (B)    (elements)   (us)  (GB/s)  (GB/s)\n"
}

// row writes a row; the times are in us.
func (l writtenLog) row(size int, us ...float64) string {
	k := ncclCollective(l.kind)
	count := size / l.bytes
	if k.parts {
		count /= l.n
	}
	text := fmt.Sprintf("%12d %12d %8s %s", size, count, l.dtype, l.id)
	for i, t := range us {
		alg := float64(size) / t / 1e3
		text += fmt.Sprintf(" %8.2f %6.2f %6.2f %s%s", t, alg, alg*k.wire(float64(l.n)), l.checks[min(i, 1)], l.extra)
	}
	return text + "\n"
}

func (l writtenLog) average(rows ...float64) string {
	sum := 0.0
	for _, r := range rows {
		sum += r
	}
	return fmt.Sprintf("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : %g\n#\n", sum/float64(len(rows)))
}

// rankLines writes a line a rank, perHost of them on each host.
func rankLines(n, perHost int, model string) string {
	text := "# Using devices\n"
	for i := range n {
		text += fmt.Sprintf("#  Rank %2d Group  0 Pid %6d on %10s device %2d [0000:%02x:00] %s\n", i, 100+i/perHost, fmt.Sprintf("host%d", i/perHost), i%perHost, 16+i, model)
	}
	return text
}

const (
	h100Text = "NVIDIA H100 80GB HBM3"
	a100Text = "NVIDIA A100-SXM4-80GB"
)

// sampleRows are three rows of a collective on 8 GPUs.
func (l writtenLog) sampleRows() string {
	return l.row(1<<20, 40, 41) + l.row(1<<24, 150, 151) + l.row(1<<28, 1500, 1510)
}

func (l writtenLog) sample() string { return rankLines(l.n, 8, h100Text) + l.head() + l.sampleRows() }

// ncclCase is a log and what becomes of it.
type ncclCase struct {
	name   string
	log    string
	o      Options
	points []string       // "op group bytes dtype: times in us"
	drops  map[string]int // by reason
	flags  []string       // a part of each
	notes  []string       // a part of some
	fails  string         // a part of the error
}

func (c ncclCase) check(t *testing.T) {
	t.Helper()
	got, err := ncclImport(ncclTestsFormat(), c.o, ncclLog(c.log))
	if c.fails != "" {
		if err == nil || !strings.Contains(err.Error(), c.fails) {
			t.Fatalf("error %v, want one with %q", err, c.fails)
		}
	} else if err != nil {
		t.Fatal(err)
	}
	if got.report == nil {
		return
	}
	var points []string
	for _, p := range got.points {
		points = append(points, describePoint(p.Shape, p.On, p.Times))
	}
	if !slices.Equal(points, c.points) {
		t.Errorf("points\n%s\nwant\n%s", strings.Join(points, "\n"), strings.Join(c.points, "\n"))
	}
	drops := map[string]int{}
	for _, d := range got.report.Dropped {
		drops[d.Reason] = d.Rows
	}
	if fmt.Sprint(drops) != fmt.Sprint(c.drops) && len(drops)+len(c.drops) > 0 {
		t.Errorf("dropped %v, want %v", drops, c.drops)
	}
	matchFlags(t, "flags", got.report.Flags, c.flags, true)
	matchFlags(t, "notes", got.report.Notes, c.notes, false)
}

// matchFlags wants each text to hold its part, and no others where exact.
func matchFlags(t *testing.T, what string, got, parts []string, exact bool) {
	t.Helper()
	if exact && len(got) != len(parts) {
		t.Errorf("%s %q, want %d", what, got, len(parts))
	}
	for _, part := range parts {
		if !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, part) }) {
			t.Errorf("no %q among the %s %q", part, what, got)
		}
	}
}

func describePoint(s op.Shape, on string, times []float64) string {
	m := op.Message{}
	switch g := s.(type) {
	case op.AllReduce:
		m = g.Message
	case op.AllGather:
		m = g.Message
	case op.ReduceScatter:
		m = g.Message
	case op.AllToAll:
		m = g.Message
	case op.SendRecv:
		m = g.Message
	}
	text := fmt.Sprintf("%s [%s] %d %s:", s.Kind(), on, m.Bytes, m.DType)
	for _, t := range times {
		text += fmt.Sprintf(" %.6g", math.Round(t*1e9)/1e3)
	}
	return text
}

// threePoints are sampleRows as points.
func threePoints(kind op.Kind, on string, both bool) []string {
	times := []string{"40", "150", "1500"}
	if both {
		times = []string{"40 41", "150 151", "1500 1510"}
	}
	var all []string
	for i, b := range []units.Bytes{1 << 20, 1 << 24, 1 << 28} {
		all = append(all, fmt.Sprintf("%s [%s] %d f32: %s", kind, on, b, times[i]))
	}
	return all
}

const (
	noAverage = "no average bus bandwidth"
	h100of8   = "8 h100_sxm/nccl over nvlink"
)

func TestNCCLCollectives(t *testing.T) {
	for _, c := range []struct {
		kind string
		want op.Kind
		o    Options
	}{
		{"all_reduce", op.KindAllReduce, Options{}},
		{"all_gather", op.KindAllGather, Options{}},
		{"reduce_scatter", op.KindReduceScatter, Options{}},
		{"alltoall", op.KindAllToAll, Options{}},
		{"sendrecv", op.KindSendRecv, Options{}},
	} {
		l := written(c.kind, 8)
		both := c.want == op.KindAllReduce
		t.Run(c.kind+" deduced", func(t *testing.T) {
			ncclCase{log: l.sample(), o: c.o, points: threePoints(c.want, h100of8, both), flags: []string{noAverage}}.check(t)
		})
		t.Run(c.kind+" named", func(t *testing.T) {
			l := l
			l.checks = [2]string{"N/A", "N/A"}
			named := "# Collective test starting: " + c.kind + "_perf_mpi\n" + l.sample()
			ncclCase{log: named, points: threePoints(c.want, h100of8, both), flags: []string{noAverage}}.check(t)
		})
		t.Run(c.kind+" without ranks", func(t *testing.T) {
			named := "# Collective test starting: " + c.kind + "_perf\n" + l.head() + l.sampleRows()
			on := ncclCase{log: named, o: Options{Device: "h100_sxm"}, points: threePoints(c.want, h100of8, both), flags: []string{noAverage}, notes: []string{"taken as 1, filled with 8"}}
			if c.want == op.KindSendRecv {
				on.fails = "--ranks"
			}
			on.check(t)
		})
		t.Run(c.kind+" contradicted", func(t *testing.T) {
			other := "all_gather"
			if ncclCollective(c.kind).parts {
				other = "all_reduce"
			}
			named := "# Collective test starting: " + other + "_perf\n" + l.sample()
			ncclCase{
				log: named, fails: ErrNothing.Error(), flags: []string{noAverage, "called " + other},
				drops: map[string]int{"the table is not of the collective that the log names": 3},
			}.check(t)
		})
	}
}

func TestNCCLAsks(t *testing.T) {
	unchecked := written("all_gather", 8)
	unchecked.checks = [2]string{"N/A", "N/A"}
	pair := written("all_reduce", 2)
	pair.checks = [2]string{"N/A", "N/A"}
	many := written("all_reduce", 1440)
	for _, c := range []ncclCase{
		{name: "collective", log: unchecked.sample(), fails: "--collective"},
		{name: "collective of two", log: pair.sample(), fails: "all_reduce or sendrecv"},
		{name: "unknown collective", log: unchecked.sample(), o: Options{Collective: "scan"}, fails: `unknown collective "scan"`},
		{name: "wrong collective", log: unchecked.sample(), o: Options{Collective: "all_reduce"}, fails: "can be all_gather or alltoall only"},
		{name: "collective given", log: unchecked.sample(), o: Options{Collective: "allgather"}, points: threePoints(op.KindAllGather, h100of8, false), flags: []string{noAverage}, notes: []string{"out-of-place"}},
		{name: "collective on the command line", log: "$ mpirun -np 8 ./build/all_gather_perf -b 1M -c 0\n" + unchecked.sample(), points: threePoints(op.KindAllGather, h100of8, false), flags: []string{noAverage}},
		{name: "device", log: written("all_reduce", 8).head() + written("all_reduce", 8).sampleRows(), fails: "--device"},
		{name: "unknown device", log: rankLines(8, 8, "Acme X1") + written("all_reduce", 8).head() + written("all_reduce", 8).sampleRows(), fails: `the GPU "Acme X1" is not known`},
		{name: "unnamed device", log: rankLines(8, 8, "") + written("all_reduce", 8).head() + written("all_reduce", 8).sampleRows(), fails: "names no GPU"},
		{name: "ranks", log: many.head() + many.row(1<<29, 7108, 7145), o: Options{Device: "gb200"}, fails: "allows 1314 to 1581 ranks"},
		{name: "ranks outside the table", log: many.head() + many.row(1<<29, 7108, 7145), o: Options{Device: "gb200", Ranks: 64}, fails: "--ranks 64: the table allows"},
		{name: "nodes", log: many.head() + many.row(1<<29, 7108, 7145), o: Options{Device: "rtx_5090", Ranks: 1440}, fails: "--nodes"},
		{name: "too many nodes", log: many.head() + many.row(1<<29, 7108, 7145), o: Options{Device: "gb200", Ranks: 1440, Nodes: 2000}, fails: "more than the 1440 ranks"},
		{name: "link", log: strings.ReplaceAll(written("all_reduce", 8).sample(), h100Text, "NVIDIA H200 NVL"), fails: "--link"},
		{name: "link given", log: strings.ReplaceAll(written("all_reduce", 8).sample(), h100Text, "NVIDIA H200 NVL"), o: Options{Link: "bridge"}, points: threePoints(op.KindAllReduce, "8 h200_nvl/nccl over bridge", true), flags: []string{noAverage}},
		{name: "no table", log: "make: *** [all] Error 2\n", fails: "no table of nccl-tests"},
		{name: "an unknown label", log: "job\n" + strings.ReplaceAll(pair.sample(), "\n", "\npod-1 worker "), fails: `log:7: column names of nccl-tests behind "pod-1 worker ", which is no launcher's label`},
		{name: "a line of another log", log: "starting\n" + `{"msg":"$ all_reduce_perf\n` + strings.ReplaceAll(pair.sample(), "\n", `\n`) + "\"}\n", o: Options{Device: "h100_sxm"}, fails: `log:2: column names of nccl-tests behind "{\"msg\":`},
		{name: "failed before any row", log: rankLines(2, 2, h100Text) + "host0: Test NCCL failure common.cu:12 'invalid usage'\n .. host0 pid 100: Test failure common.cu:34\n", fails: `log:4: the test failed before it measured anything: "host0: Test NCCL failure common.cu:12 'invalid usage'"`},
		{name: "rccl-tests' file of results", log: `{"#wrong":"0","algBw":0.05,"busBw":0.08,"gpus":4,"inPlace":0,"name":"AllReduce","redop":"sum","size":1024,"time":19.2,"type":"float"}` + "\n", fails: "no key of an nccl-tests file (version, args, config, results); instead of the results that rccl-tests -x or a fork wrote as JSON or CSV, import what the test printed"},
		{name: "rccl-tests' list of results", log: `[{"#wrong":"0","algBw":0.05,"busBw":0.08,"gpus":4,"inPlace":0,"name":"AllReduce"}]` + "\n", fails: "is it another tool's file? instead of the results that rccl-tests -x"},
		{name: "empty", log: "", fails: "no table of nccl-tests"},
		{name: "rccl on another vendor's GPU", log: "RCCL version : 2.20.5-HEAD:1\n" + written("all_reduce", 8).head() + written("all_reduce", 8).sampleRows(), o: Options{Device: "h100_sxm"}, fails: "RCCL"},
	} {
		t.Run(c.name, c.check)
	}
}

// What launchers, terminals and pages put around a log changes nothing.
func TestNCCLDecorated(t *testing.T) {
	plain := written("all_reduce", 8).sample()
	each := func(before, after string) string {
		return strings.ReplaceAll(strings.TrimSuffix(before+strings.ReplaceAll(plain, "\n", after+"\n"+before), before), "\x01", "")
	}
	flushed := strings.NewReplacer(" -1 ", " -1[0] ", " 0 ", " 0[0] ", " root ", " root[0] ") // before every piece that a row is printed in
	info := "host0:100:100 [0] NCCL INFO Channel 00/16 :    0   1   2   3   4   5   6   7\n"
	for name, log := range map[string]string{
		"Open MPI 4":      each("[1,0]<stdout>:", ""),
		"Open MPI 5":      each("[prterun-host0-123@1,0]<stdout>: ", ""),
		"Open MPI stamps": each("Mon Jan  5 10:11:12 2026[1,0]<stdout>:", ""),
		"srun":            each("0: ", ""),
		"srun of many":    each(" 12: ", ""),
		"mpiexec":         each("[0] ", ""),
		"Hydra's pieces":  strings.ReplaceAll(flushed.Replace(each("[0] ", "")), "(us)", "(us)[0] "),
		"pdsh":            each("host0: ", ""),
		"PALS":            each("x1c2s3b0n0.hsn.example.org 0: ", ""),
		"container":       each("worker-0  | ", ""),
		"CRI":             each("2025-01-01T00:00:00Z stdout F ", ""),
		"CRI, nanosecs":   each("2025-01-01T00:00:00.123456789+02:00 stderr F ", ""),
		"CRI and MPI":     each("2025-01-01T00:00:00.123456789Z stdout F [1,0]<stdout>:", ""),
		"SkyPilot":        each("(head, rank=0, pid=3808) ", ""),
		"SkyPilot, MPI":   each("(worker1, rank=1, pid=2769, ip=10.0.0.2) [1,0]<stdout>:", ""),
		"Ray":             each("\x1b[36m(bench pid=71)\x1b[0m ", ""),
		"time stamps":     each("2026-01-05T10:11:12.123456Z ", ""),
		"quotation":       each("> ", ""),
		"torchrun":        each("[default0]:", ""),
		"torchrun's rank": each("[rank0]:", ""),
		"hours":           each("[12:00:01]", ""),
		"grep":            each("slurm-12.out:", ""),
		"no-break blanks": strings.NewReplacer("   ", "\u00a0\u2007\u202f", "#\n", "\u200b#\n").Replace(plain),
		"page":            "<html><body><pre><code>" + plain + "</code></pre></body></html>",
		"page of lines":   each("<p>", "<br/></p>"),
		"colours":         each("\x1b[32m", "\x1b[0m\x1b[K"),
		"line ends":       each("", "\r"),
		"progress":        each("loading 1 %\rloading 2 %\r", ""),
		"indented":        each("    ", "   "),
		"fences":          "Results:\n```text\n" + plain + "```\n",
		"byte order mark": "\ufeff" + plain,
		"library's talk":  info + strings.ReplaceAll(plain, "\n", "\n"+info),
		"warnings":        "Warning: Permanently added 'host1' (ECDSA) to the list of known hosts.\nAuthorization required, but no authorization protocol specified\n\n" + plain,
		"tagged srun":     each("0: [1,0]<stdout>:", ""),
		"no last newline": strings.TrimSuffix(plain, "\n"),
	} {
		t.Run(name, func(t *testing.T) {
			ncclCase{log: log, points: threePoints(op.KindAllReduce, h100of8, true), flags: []string{noAverage}}.check(t)
		})
	}
}

// What the header says counts whatever stands around its lines; one that looks like the
// header's and cannot be read is told of.
func TestNCCLHeaderDecorated(t *testing.T) {
	const settings = "# nThread 1 nGpus 8 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0 side_work: 1 work_sms: 8\n"
	table := written("all_reduce", 8).sample()
	for _, before := range []string{"```", "~~~", "<pre>", "<pre><code class=\"x\">", "\"", "Starting test...", "[default0]:", "[12:00:01]", "log:", "\u00a0", "\u200b", "#\u00a0\u202f"} {
		ncclCase{log: before + settings + table, fails: ErrNothing.Error(), drops: map[string]int{"measured beside other work": 3}, flags: []string{noAverage, "side_work"}}.check(t)
	}
	all := threePoints(op.KindAllReduce, h100of8, true)
	for line, flag := range map[string]string{
		"# nThread 1 nGpus 8 minBytes 8\n":                                             `line 1 looks like settings or a rank of the test, and cannot be read: "# nThread 1 nGpus 8 minBytes 8"`,
		"job: # Rank  0 Group  0 Pid 100 on host0 device  0 [0000:10:00 NVIDIA H100\n": "line 1 looks like",
		"host0:100:100 [0] NCCL INFO Rank 0 uses device 0\n":                           "",
		"Rank 0 is on the device of host0\n":                                           "",
	} {
		c := ncclCase{name: line, log: line + table, points: all, flags: []string{noAverage}}
		if flag != "" {
			c.flags = append(c.flags, flag)
		}
		t.Run(line, c.check)
	}
}

// Tables that were put into Markdown are read; what is read of no other form is named.
func TestNCCLCells(t *testing.T) {
	l := written("all_reduce", 8)
	cells := func(before, between, after, table string) string {
		text := ""
		for line := range strings.Lines(table) {
			text += before + strings.Join(strings.Fields(strings.TrimPrefix(line, "#")), between) + after + "\n"
		}
		return text
	}
	names := "size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
	head, ranks := cells("| ", " | ", " |", names), rankLines(8, 8, h100Text)
	rule := "|" + strings.Repeat("---|", 13) + "\n"
	all := threePoints(op.KindAllReduce, h100of8, true)
	const refused = "column names of nccl-tests, but not as it prints them: "
	for _, c := range []ncclCase{
		{name: "Markdown", log: ranks + head + rule + cells("| ", " | ", " |", l.sampleRows()), points: all, flags: []string{noAverage}},
		{name: "Markdown, bars alone", log: ranks + cells("|", "|", "|", names) + rule + cells("|", "|", "|", l.sampleRows()), points: all, flags: []string{noAverage}},
		{name: "Markdown with units", log: ranks + strings.Replace(head, "time", "time (ms)", 1) + rule + cells("| ", " | ", " |", l.sampleRows()), fails: ErrNothing.Error(), drops: map[string]int{tornRow: 3}, flags: []string{noAverage}},
		{name: "Markdown with a unit of sizes", log: ranks + strings.Replace(head, "size", "size (B)", 1) + rule + cells("| ", " | ", " |", l.sampleRows()), points: all, flags: []string{noAverage, "rows without column names"}},
		{name: "CSV", log: ranks + cells("", ",", "", names+l.sampleRows()), fails: "log:10: " + refused + `"size,count,type,`},
	} {
		t.Run(c.name, c.check)
	}
}

// A log that PowerShell wrote is of UTF-16 with a mark; its first line counts too.
func TestNCCLUTF16(t *testing.T) {
	for name, order := range map[string]binary.AppendByteOrder{"little": binary.LittleEndian, "big": binary.BigEndian} {
		t.Run(name, func(t *testing.T) {
			var log []byte
			for _, c := range "\ufeff# nccl-tests version 2.17.9 nccl-headers=22903 nccl-library=22903\r\n" + written("all_reduce", 8).sample() {
				log = order.AppendUint16(log, uint16(c))
			}
			ncclCase{log: string(log), points: threePoints(op.KindAllReduce, "8 h100_sxm/nccl-2.29.3 over nvlink", true), flags: []string{noAverage}}.check(t)
		})
	}
}

func TestNCCLGenerations(t *testing.T) {
	reduce := written("all_reduce", 8)
	classic := reduce
	classic.columns, classic.checks = "error", [2]string{"2e-07", "3e-07"}
	classicHead := func(id string) string {
		return "#   size   count   type   " + id + "    time   algbw   busbw  error     time   algbw   busbw  error\n"
	}
	blank := written("alltoall", 8)
	blank.id, blank.checks = "", [2]string{"2e-07", "N/A"}
	scatter := written("reduce_scatter", 8)
	scatter.id, scatter.checks = "sum", [2]string{"2e-07", "2e-07"}
	classic.id = "sum"
	perIter := reduce
	perIter.columns, perIter.extra = "#wrong   i_min   i_max   i_p99   i_cv%", "   39.1   43.0   42.9    1.20"
	lone := "#   size   count   type   redop   root    time   algbw   busbw  #wrong\n" + reduce.row(1<<20, 40) + reduce.row(1<<24, 150) + reduce.row(1<<28, 1500)
	loneGather := strings.ReplaceAll(lone, "sum", "none")
	for _, b := range []int{20, 24, 28} {
		loneGather = strings.ReplaceAll(loneGather, fmt.Sprint(1<<b>>2, " "), fmt.Sprint(1<<b>>5, " "))
	}
	stamped := strings.ReplaceAll(reduce.sample(), " 0\n", " 0  2026-01-05 10:11:12\n")
	stamped = strings.ReplaceAll(stamped, "busbw #wrong\n", "busbw #wrong  timestamp\n")
	ranks := rankLines(8, 8, h100Text)
	all := threePoints(op.KindAllReduce, h100of8, true)
	for _, c := range []ncclCase{
		{name: "classic all_reduce", log: ranks + classicHead("redop") + classic.sampleRows(), points: all},
		{name: "classic alltoall with blank redop", log: ranks + classicHead("redop") + blank.sampleRows(), points: threePoints(op.KindAllToAll, h100of8, false)},
		{name: "classic reduce_scatter", log: ranks + classicHead("redop") + scatter.sampleRows(), points: threePoints(op.KindReduceScatter, h100of8, false)},
		{name: "per iteration", log: ranks + perIter.head() + perIter.sampleRows(), points: all},
		{name: "time stamps", log: stamped, points: all},
		{name: "in place only", log: ranks + lone, points: threePoints(op.KindAllReduce, h100of8, false)},
		{name: "in place only, all_gather", log: ranks + loneGather, fails: ErrNothing.Error(), drops: map[string]int{errInPlace.Error(): 3}},
		{name: "column names without blanks before", log: strings.ReplaceAll(reduce.sample(), "#   size", "#size"), points: all},
		{name: "without column names", log: ranks + reduce.sampleRows(), points: all, flags: []string{"without column names"}},
		{name: "without any header", log: reduce.sampleRows(), o: Options{Device: "h100_sxm"}, points: all, flags: []string{"without column names"}},
	} {
		c.flags = append(c.flags, noAverage)
		t.Run(c.name, c.check)
	}
}

// Times of 2017 to 2019 are in ms.
func TestNCCLMilliseconds(t *testing.T) {
	log := `# Using devices
#   Rank  0 uses device  0 [0x06] Tesla V100-SXM2-16GB
#   Rank  1 uses device  1 [0x07] Tesla V100-SXM2-16GB

#                                                 out-of-place                    in-place
#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res
     1048576        262144   float     sum    0.040  26.21  26.21    1e-07    0.041  25.58  25.58    1e-07
    16777216       4194304   float     sum    0.400  41.94  41.94    1e-07    0.410  40.92  40.92    1e-07
 Out of bounds values : 0 OK
 Avg bus bandwidth    : 33.6625
`
	ncclCase{log: log, o: Options{Nodes: 1, Collective: "all_reduce"}, points: []string{
		"all_reduce [2 v100_sxm_16gb/nccl over nvlink] 1048576 f32: 40 41",
		"all_reduce [2 v100_sxm_16gb/nccl over nvlink] 16777216 f32: 400 410",
	}}.check(t)
}

// Until June 2020 both bandwidths of all_gather and reduce_scatter were of size (n-1)/n, as
// those of hypercube are: the collective is the command's or the user's, the time is the time.
func TestNCCLMovedBytes(t *testing.T) {
	old := func(l writtenLog) string {
		l.kind = "hypercube" // whose bandwidths are as these were, but for the factor
		text := rankLines(8, 8, h100Text) + l.head()
		for _, r := range [][2]float64{{1 << 20, 40}, {1 << 24, 150}, {1 << 28, 1500}} {
			text += fmt.Sprintf("%12.0f %12.0f float %s", r[0], r[0]/32, l.id)
			for i := range 2 {
				us := r[1] + float64(i)
				bw := r[0] * 7 / 8 / us / 1e3
				text += fmt.Sprintf(" %8.2f %6.2f %6.2f %s", us, bw, bw, "0e+00")
			}
			text += "\n"
		}
		return text + "# Out of bounds values : 0 OK\n"
	}
	gather, scatter := written("all_gather", 8), written("reduce_scatter", 8)
	gather.columns, scatter.columns = "error", "error"
	points := threePoints(op.KindAllGather, h100of8, false)
	flags, notes := []string{noAverage}, []string{"log:12: algbw is of what a rank sends, size (n-1)/n, as nccl-tests printed it until June 2020"}
	shifted := strings.Replace(old(gather), "156.59 156.59", "178.96 178.96", 1)
	for _, c := range []ncclCase{
		{name: "the command", log: "$ ./all_gather_perf -g 8\n" + old(gather), points: points, flags: flags},
		{name: "the user", log: old(gather), o: Options{Collective: "all_gather"}, points: points, flags: flags, notes: notes},
		{name: "nobody", log: old(gather), fails: "the table could be all_gather or hypercube; say which with --collective"},
		{name: "a hypercube", log: "$ ./hypercube_perf -g 8\n" + old(gather), fails: "holds hypercube only"},
		{name: "reduce_scatter", log: old(scatter), points: threePoints(op.KindReduceScatter, h100of8, false), flags: flags, notes: notes},
		{
			name: "a row of the other form", log: shifted, o: Options{Collective: "all_gather"}, points: points[:2], flags: append(flags, "234881024 bytes in 1500 us are 156.587 GB/s, but algbw says 178.96"),
			notes: notes, drops: map[string]int{errDisagree.Error(): 1},
		},
	} {
		t.Run(c.name, c.check)
	}
}

func TestNCCLLaunchTimes(t *testing.T) {
	log := rankLines(8, 8, h100Text) + strings.ReplaceAll(written("all_reduce", 8).head(), "time", "cputime") +
		// The launch takes 5 us; 2^28 bytes at 178.96 GB/s take 1500 us.
		"  1024  256  float  sum  -1   5.00    0.03    0.04  0   5.00   0.03   0.04  0\n" +
		" 268435456 67108864  float  sum  -1   5.00  178.96  313.17  0   5.10  177.77  311.10  0\n"
	ncclCase{
		log: log, points: []string{"all_reduce [" + h100of8 + "] 268435456 f32: 1499.97 1510.02"},
		drops: map[string]int{errLaunch.Error(): 1}, flags: []string{noAverage},
	}.check(t)
}
