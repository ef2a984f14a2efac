package importer

import (
	"fmt"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// Logs that contradict themselves are reported, and what is wrong is not used.
func TestNCCLContradictions(t *testing.T) {
	reduce, gather := written("all_reduce", 8), written("all_gather", 8)
	wrong := reduce
	wrong.checks = [2]string{"7", "0"}
	bothWrong := gather
	bothWrong.checks = [2]string{"7", "0"}
	classic := reduce
	classic.columns, classic.checks = "error", [2]string{"1e-03", "2e-07"}
	starred := reduce
	starred.columns, starred.checks = "error", [2]string{"2e-07*", "2e-07"}
	ranks, all := rankLines(8, 8, h100Text), threePoints(op.KindAllReduce, h100of8, true)
	inPlaceOnly := []string{
		"all_reduce [" + h100of8 + "] 1048576 f32: 41",
		"all_reduce [" + h100of8 + "] 16777216 f32: 151",
		"all_reduce [" + h100of8 + "] 268435456 f32: 1510",
	}
	sixteen := written("all_gather", 16)
	halfNodes := written("all_reduce", 16)
	inMS := strings.NewReplacer("   40.00", "    0.04", "   41.00", "    0.04", "  150.00", "    0.15", "  151.00", "    0.15", " 1500.00", "    1.50", " 1510.00", "    1.51").Replace(reduce.sampleRows())
	shifted := strings.Replace(reduce.sampleRows(), "313.17", "413.17", 1)
	fast := reduce.row(1<<28, 400, 1500)
	alone, mine := written("all_reduce", 1), rankLines(1, 1, h100Text)
	for _, c := range []ncclCase{
		{name: "wrong results", log: ranks + wrong.head() + wrong.sampleRows(), points: inPlaceOnly, flags: []string{"a wrong result (error 7)", "a wrong result", "a wrong result", noAverage}},
		{
			name: "wrong results out of place", log: ranks + bothWrong.head() + bothWrong.sampleRows(), fails: ErrNothing.Error(), drops: map[string]int{errWrong.Error(): 3},
			flags: []string{"a wrong result", "a wrong result", "a wrong result", noAverage},
		},
		{name: "classic errors above rounding", log: ranks + classic.head() + classic.sampleRows(), points: inPlaceOnly, flags: []string{"error 0.001", "error 0.001", "error 0.001", noAverage}},
		{name: "asterisks", log: ranks + starred.head() + starred.sampleRows(), points: inPlaceOnly, flags: []string{"a wrong result", "a wrong result", "a wrong result", noAverage}},
		{
			name: "wrong somewhere", log: ranks + reduce.head() + reduce.sampleRows() + "# Out of bounds values : 12 FAILED\n# Avg bus bandwidth    : 175.4\n", fails: ErrNothing.Error(),
			drops: map[string]int{"wrong results in unknown rows": 3}, flags: []string{"12 results out of bounds, and no row shows which", "average"},
		},
		{
			name: "rank lines against the table", log: ranks + sixteen.head() + sixteen.sampleRows(), fails: ErrNothing.Error(),
			drops: map[string]int{contradictoryRanks: 3}, flags: []string{noAverage, "the rank lines say 8 ranks, the table says 16"},
		},
		{
			name: "rank lines against the ratio", log: ranks + halfNodes.head() + halfNodes.sampleRows(), fails: ErrNothing.Error(),
			drops: map[string]int{contradictoryRanks: 3}, flags: []string{noAverage, "the rank lines say 8 ranks, the table says"},
		},
		{
			name: "processes that did not join each other", log: "$ mpirun -np 2 ./all_reduce_perf -g 1\n" + mine + strings.ReplaceAll(mine, "host0", "host1") + alone.head() + alone.head() + alone.sampleRows() + alone.sampleRows(),
			fails: ErrNothing.Error(), drops: map[string]int{contradictoryRanks: 6}, flags: []string{noAverage, "the rank lines hold 2 ranks of one group, the highest number says 1; did processes run each on their own"},
		},
		{
			name: "rank lines cut out", log: ranks + "...\n" + sixteen.head() + sixteen.sampleRows(), o: Options{Nodes: 2}, points: threePoints(op.KindAllGather, "16 h100_sxm/nccl over net on 2 nodes", false),
			flags: []string{noAverage, "lines were cut out", "the rank lines say 8 ranks, the table says 16"},
		},
		{
			name: "processes that do not divide the ranks", log: "# nThread 1 nGpus 3 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n" + reduce.sample(), fails: ErrNothing.Error(),
			drops: map[string]int{contradictoryRanks: 3}, flags: []string{noAverage, "every process has 3"},
		},
		{
			name: "another unit", log: ranks + reduce.head() + inMS, fails: ErrNothing.Error(), drops: map[string]int{errDisagree.Error(): 3},
			flags: []string{noAverage, "another unit", "another unit", "another unit", "another unit", "another unit", "another unit"},
		},
		{name: "a bandwidth that does not fit", log: ranks + reduce.head() + shifted, points: append(all[:2:2], "all_reduce ["+h100of8+"] 268435456 f32: 1510"), flags: []string{noAverage, "busbw 413.17 GB/s is not 1.75 times algbw 178.96"}},
		{name: "above the links' peak", log: strings.Replace(reduce.sample(), reduce.row(1<<28, 1500, 1510), fast, 1), points: append(all[:2:2], "all_reduce ["+h100of8+"] 268435456 f32: 1500"), flags: []string{noAverage, "above the peak"}},
		{name: "an average that does not fit", log: reduce.sample() + reduce.average(500), points: all, flags: []string{"the printed average bus bandwidth 500 GB/s is not that of the rows"}},
		{name: "the average fits", log: reduce.sample() + "# Avg bus bandwidth    : 184.033\n", points: all},
		{name: "larger than asked for", log: "# nThread 1 nGpus 8 minBytes 8 maxBytes 16777216 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n" + reduce.sample(), points: all, flags: []string{noAverage, "more than the header's maxBytes 16777216"}},
		{name: "two versions", log: "# nccl-tests version 2.17.9 nccl-headers=22903 nccl-library=22903\nNCCL version 2.27.3+cuda12.9\n" + reduce.sample(), points: threePoints(op.KindAllReduce, "8 h100_sxm/nccl-2.29.3 over nvlink", true), flags: []string{noAverage, "two versions of the library, 2.29.3 and 2.27.3"}},
		{name: "another device than the user says", log: reduce.sample(), o: Options{Device: "a100_sxm"}, points: all, flags: []string{noAverage, "the file's is taken"}},
		{name: "a device that nobody knows", log: reduce.sample(), o: Options{Device: "nosuch"}, points: all, flags: []string{noAverage, "h100_sxm, which is taken, and --device says \"nosuch\", which is no GPU that is known"}},
		{name: "one of several that a name may mean", log: reduce.sample(), o: Options{Device: "h100"}, points: all, flags: []string{noAverage}},
		{
			name: "other ranks, nodes and collective than the user says", log: reduce.sample(), o: Options{Ranks: 16, Nodes: 2, Collective: "all_gather"}, points: all,
			flags: []string{noAverage, "of all_reduce, --collective says all_gather", "of 8 ranks, --ranks says 16", "name 1 host, --nodes says 2"},
		},
		{name: "a run that hung", log: ranks + reduce.head(), fails: ErrNothing.Error(), flags: []string{"column names and no row below: the run hung or failed there"}},
		{
			name: "a run that failed at its first row", log: ranks + reduce.head() + "host0: Test NCCL failure common.cu:303 'internal error'\n", fails: ErrNothing.Error(),
			flags: []string{"column names and no row below: the run hung or failed there"},
		},
		{name: "the ranks, nodes and collective that the user says", log: reduce.sample(), o: Options{Ranks: 8, Nodes: 1, Collective: "allreduce"}, points: all, flags: []string{noAverage}},
		{
			name: "beside other work", log: "# nThread 1 nGpus 8 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0 side_work: 1 work_sms: 8\n" + reduce.sample(),
			fails: ErrNothing.Error(), drops: map[string]int{"measured beside other work": 3}, flags: []string{noAverage, "side_work"},
		},
		{
			name: "one rank", log: mine + "# Collective test starting: all_reduce_perf\n" + alone.head() + alone.sampleRows(), fails: ErrNothing.Error(),
			drops: map[string]int{"one rank: nothing is exchanged": 3}, flags: []string{noAverage},
		},
		{
			name: "one rank of a collective that is not named", log: mine + alone.head() + alone.sampleRows(), fails: ErrNothing.Error(),
			drops: map[string]int{"one rank: nothing is exchanged": 3}, flags: []string{noAverage},
		},
		{
			name: "one rank, as the bandwidth tells", log: alone.head() + alone.sampleRows(), fails: ErrNothing.Error(),
			drops: map[string]int{"one rank: nothing is exchanged": 3}, flags: []string{noAverage},
		},
		{
			name: "the line of one rank of several", log: mine + reduce.head() + reduce.sampleRows(), fails: ErrNothing.Error(),
			drops: map[string]int{contradictoryRanks: 3}, flags: []string{noAverage, "the rank lines say 1 rank, the table says 8"},
		},
		{
			name: "the line of one rank of several, by their parts", log: mine + sixteen.head() + sixteen.sampleRows(), fails: ErrNothing.Error(),
			drops: map[string]int{contradictoryRanks: 3}, flags: []string{noAverage, "the rank lines say 1 rank, the table says 16"},
		},
		{name: "the line of one rank, the others cut out", log: mine + "...\n" + reduce.head() + reduce.sampleRows(), points: all, flags: []string{noAverage, "lines were cut out", "the rank lines say 1 rank, the table says 8"}, notes: []string{"taken as 1, filled with 8"}},
	} {
		t.Run(c.name, c.check)
	}
}

// Rows that were torn or mixed with other output are counted, the others used.
func TestNCCLTornRows(t *testing.T) {
	l := written("all_reduce", 8)
	all := threePoints(op.KindAllReduce, h100of8, true)
	row := l.row(1<<22, 60, 61)
	for name, torn := range map[string]string{
		"cut in the first half":  row[:50] + "\n",
		"cut in the second half": strings.TrimRight(row[:len(row)-8], " ") + "\n",
		"size alone":             "     4194304\n",
		"size and count":         "     4194304   1048576\n",
		"foreign text within":    row[:40] + "host3:100:100 [3] NCCL INFO comm 0x1 rank 3 nranks 8\n",
		"foreign text before":    "host3:100:100 [3] NCCL INFO Trees [0] 1/-1/-1->0->-1" + row,
		"two rows in a line":     strings.TrimSuffix(row, "\n") + row,
		"a letter in a number":   strings.Replace(row, "60.00", "6o.00", 1),
		"separators":             strings.Replace(strings.Replace(row, " 4194304", " 4,194,304", 1), " 1048576", " 1,048,576", 1),
		"separators of one":      strings.Replace(row, " 4194304", " 4,194,304", 1),
		"suffixes":               strings.Replace(strings.Replace(row, " 4194304", " 4M", 1), " 1048576", " 1M", 1),
		"a blank redop":          strings.Replace(strings.Replace(row, " 4194304", " 4M", 1), "sum      -1", "      -1", 1),
		"a negative size":        strings.Replace(row, " 1048576", " -1048576", 1),
		"a size beyond int64":    strings.Replace(row, " 4194304", " 99999999999999999999", 1),
	} {
		t.Run(name, func(t *testing.T) {
			log := rankLines(8, 8, h100Text) + l.head() + l.row(1<<20, 40, 41) + torn + l.row(1<<24, 150, 151) + l.row(1<<28, 1500, 1510)
			c := ncclCase{log: log, points: all, drops: map[string]int{tornRow: 1}, flags: []string{noAverage}}
			c.check(t)
		})
	}
	ncclCase{log: l.sample() + row[:70], points: all, drops: map[string]int{tornRow: 1}, flags: []string{noAverage}}.check(t)
	aborted := l.sample() + row[:70] + "\nhost0: Test NCCL failure common.cu:346 'unhandled system error'\n .. host0 pid 100: Test failure common.cu:378\n"
	ncclCase{log: aborted, points: all, drops: map[string]int{tornRow: 1}, flags: []string{"the run failed after the table had begun"}}.check(t)
}

// Every process runs nThread x nGpus ranks: a list of every rank that names more processes
// than these make is of another run than the settings, and a sendrecv's table cannot tell.
func TestNCCLProcesses(t *testing.T) {
	l := written("sendrecv", 8)
	var pids []string
	devices := jsonDevices(8, 1, 8)
	for i := range 8 {
		pids = append(pids, fmt.Sprintf("Rank %2d Group  0 Pid    100", i), fmt.Sprintf("Rank %2d Group  0 Pid    %d", i, 100+i))
		devices = strings.Replace(devices, `"pid":1,`, fmt.Sprintf(`"pid":%d,`, 100+i), 1)
	}
	own := strings.NewReplacer(pids...)
	threads := func(devices string) string { return strings.Replace(devices, `"nthreads":1`, `"nthreads":4`, 1) }
	params := func(threads, gpus int) string {
		return fmt.Sprintf("# nThread %d nGpus %d minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n", threads, gpus)
	}
	program, points := "# Collective test starting: sendrecv_perf\n", threePoints(op.KindSendRecv, h100of8, false)
	for _, c := range []ncclCase{
		{name: "a process a rank", log: program + params(1, 1) + own.Replace(l.sample()), points: points, flags: []string{noAverage}},
		{name: "one process", log: program + params(2, 4) + l.sample(), points: points, flags: []string{noAverage}},
		{
			name: "eight of two GPUs", log: program + params(1, 2) + own.Replace(l.sample()), fails: ErrNothing.Error(), drops: map[string]int{contradictoryRanks: 3},
			flags: []string{noAverage, "8 ranks are listed, of 8 processes (pid) that run 2 each (nThread 1 nGpus 2), which makes 16"},
		},
		{
			name: "two of four threads", log: jsonLog("sendrecv_perf", threads(strings.ReplaceAll(jsonDevices(8, 1, 4), `"pid":1`, `"pid":9`)), l.jsonRows(), `}`),
			points: threePoints(op.KindSendRecv, "8 h100_sxm/nccl-2.30.4 over net on 2 nodes", false), flags: []string{noAverage},
		},
		{
			name: "eight of four threads", log: jsonLog("sendrecv_perf", threads(devices), l.jsonRows(), `}`),
			fails: ErrNothing.Error(), drops: map[string]int{contradictoryRanks: 3}, flags: []string{noAverage, "which makes 32"},
		},
	} {
		t.Run(c.name, c.check)
	}
}

// A command line and the program's own line are two sources of the collective. Of several
// commands, as a script lists them, none is this table's for certain.
func TestNCCLCommandAgainstProgram(t *testing.T) {
	l, points := written("sendrecv", 8), threePoints(op.KindSendRecv, h100of8, false)
	program := "# Collective test starting: sendrecv_perf\n"
	odd := "the command line above is of all_gather_perf, the program's own line says sendrecv_perf"
	for _, c := range []ncclCase{
		{name: "the same", log: "$ ./sendrecv_perf -g 8\n" + program + l.sample(), points: points, flags: []string{noAverage}},
		{name: "another", log: "$ ./all_gather_perf -g 8\n" + program + l.sample(), points: points, flags: []string{noAverage, odd}},
		{name: "a script", log: "$ ./all_gather_perf -g 8\n$ ./sendrecv_perf -g 8\n$ ./all_gather_perf -g 8\n" + program + l.sample(), points: points, flags: []string{noAverage}},
		{name: "a loop", log: "for p in all_gather_perf sendrecv_perf; do ./$p; done\n" + program + l.sample(), points: points, flags: []string{noAverage}},
		{name: "a run each", log: "$ ./sendrecv_perf\n" + program + l.sample() + "$ ./sendrecv_perf -g 8\n" + program + l.sample(), points: append(points[:3:3], points...), flags: []string{noAverage, noAverage}},
	} {
		t.Run(c.name, c.check)
	}
}

func TestNCCLSeveralTables(t *testing.T) {
	reduce, gather, pair := written("all_reduce", 8), written("all_gather", 8), written("all_gather", 2)
	on16 := written("all_reduce", 16)
	cast := written("all_reduce", 8)
	cast.id = "none       0"
	params := "# nThread 1 nGpus 8 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n"
	log := "$ ./all_reduce_perf -g 8\n" + params + reduce.sample() + "# Avg bus bandwidth    : 184.033\n#\n" +
		"$ ./all_gather_perf -g 8\n" + params + gather.sample() +
		"$ ./broadcast_perf -g 8\n" + params + cast.sample() +
		"$ ./all_gather_perf -g 2\n" + strings.Replace(params, "nGpus 8", "nGpus 2", 1) + rankLines(2, 2, a100Text) + "NCCL version 2.27.3+cuda12.9\n" + pair.head() + pair.row(1<<20, 40, 41) +
		rankLines(16, 8, h100Text) + on16.head() + on16.row(1<<28, 1700, 1710) + "# Avg bus bandwidth    : 295.208\n"
	points := threePoints(op.KindAllReduce, h100of8, true)
	points = append(points, threePoints(op.KindAllGather, h100of8, false)...)
	points = append(points, "all_gather [2 a100_sxm/nccl-2.27.3 over nvlink] 1048576 f32: 40",
		"all_reduce [16 h100_sxm/nccl over net on 2 nodes] 268435456 f32: 1700 1710")
	ncclCase{log: log, points: points, drops: map[string]int{"broadcast: no law covers it": 3}, flags: []string{noAverage, noAverage, noAverage}, notes: []string{"several nodes, whose links are called net"}}.check(t)

	// The version below a footer is that of the run that follows.
	log = reduce.sample() + "# Avg bus bandwidth    : 184.033\nNCCL version 2.27.3+cuda12.9\n" + reduce.head() + reduce.sampleRows() + "# Avg bus bandwidth    : 184.033\n"
	ncclCase{log: log, o: Options{Device: "h100_sxm"}, points: append(threePoints(op.KindAllReduce, h100of8, true), threePoints(op.KindAllReduce, "8 h100_sxm/nccl-2.27.3 over nvlink", true)...)}.check(t)

	for _, kind := range []string{"broadcast", "reduce", "gather", "scatter", "hypercube", "alltoallv"} {
		log := "# Collective test starting: " + kind + "_perf\n" + strings.Replace(gather.sample(), "all_gather", kind, 1)
		ncclCase{name: kind, log: log, fails: "holds " + kind + " only"}.check(t)
	}
}

// A script runs every test of the suite: the log of a collective that no law covers is left
// out, and ends the import only where no other is there.
func TestNCCLSeveralFiles(t *testing.T) {
	cast := written("all_reduce", 8)
	cast.id = "none       0"
	file := func(name, log string) Source {
		src := ncclLog(log)
		src.Name = name
		return src
	}
	broadcast, reduce := file("broadcast.log", cast.sample()), file("all_reduce.log", written("all_reduce", 8).sample())
	got, err := ncclImport(ncclTestsFormat(), Options{}, broadcast, reduce)
	if err != nil {
		t.Fatal(err)
	}
	if got.report.Points != 3 || got.report.Rows != 6 || len(got.report.Dropped) != 1 || got.report.Dropped[0].Reason != "broadcast: no law covers it" {
		t.Errorf("%+v", got.report)
	}
	matchFlags(t, "flags", got.report.Flags, []string{"broadcast.log: holds broadcast only, which no law covers", noAverage, "all_reduce.log"}, true)
	_, err = ncclImport(ncclTestsFormat(), Options{}, broadcast, file("again.log", cast.sample()))
	if err == nil || !strings.Contains(err.Error(), "broadcast.log: holds broadcast only, which no law covers; import logs of") {
		t.Errorf("error %v", err)
	}
}

// Times of a forced algorithm or transport are not those of what the library
// chooses.
func TestNCCLForced(t *testing.T) {
	l := written("all_reduce", 8)
	table := l.sample() + "# Avg bus bandwidth    : 184.033\n"
	all := threePoints(op.KindAllReduce, h100of8, true)
	for before, note := range map[string]string{
		"$ NCCL_ALGO=Ring ./all_reduce_perf -g 8\n":                                  "log:13: a line above the table says NCCL_ALGO=Ring",
		"export NCCL_PROTO=Simple\n":                                                 "log:13: a line above the table says NCCL_PROTO=Simple",
		"$ mpirun -np 8 -x NCCL_ALGO=Tree \\\n ./all_reduce_perf\n":                  "log:14: a line above the table says NCCL_ALGO=Tree",
		"host0:100:100 [0] NCCL INFO NCCL_ALGO set by environment to Ring\n":         "log:13: a line above the table says NCCL_ALGO set by environment to Ring",
		"$ NCCL_P2P_LEVEL=NVL ./all_reduce_perf -g 8\n":                              "log:13: a line above the table says NCCL_P2P_LEVEL=NVL",
		"$ mpirun -x NCCL_IB_DISABLE=1 ./all_reduce_perf\n":                          "log:13: a line above the table says NCCL_IB_DISABLE=1",
		"$ mpirun -x NCCL_NVLS_ENABLE=0 ./all_reduce_perf\n":                         "log:13: a line above the table says NCCL_NVLS_ENABLE=0",
		"host0:100:100 [0] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.\n":    "log:13: a line above the table says NCCL_NVLS_ENABLE set by environment to 0",
		"host1:100:100 [0] NCCL INFO NCCL_CUMEM_ENABLE set by environment to 0.\n":   "log:13: a line above the table says NCCL_CUMEM_ENABLE set by environment to 0",
		"host2:100:100 [0] NCCL INFO NCCL_MAX_CTAS set by environment to 4.\n":       "log:13: a line above the table says NCCL_MAX_CTAS set by environment to 4",
		"host3:100:100 [0] NCCL INFO NCCL_NET_GDR_LEVEL set by environment to PIX\n": "log:13: a line above the table says NCCL_NET_GDR_LEVEL set by environment to PIX",
		"export NCCL_MIN_CTAS=32\n":                                                  "log:13: a line above the table says NCCL_MIN_CTAS=32",
		"export NCCL_MIN_NCHANNELS=16 NCCL_MAX_NCHANNELS=16\n":                       "log:13: a line above the table says NCCL_MIN_NCHANNELS=16, NCCL_MAX_NCHANNELS=16",
		"export NCCL_NET_GDR_READ=1\n":                                               "log:13: a line above the table says NCCL_NET_GDR_READ=1",
		"export NCCL_IB_GDR_LEVEL=3\n":                                               "log:13: a line above the table says NCCL_IB_GDR_LEVEL=3",
		"$ NCCL_ALGO=Ring NCCL_NVLS_ENABLE=0 ./all_reduce_perf -g 8\n" +
			"host0:100:100 [0] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.\n": "log:14: a line above the table says NCCL_ALGO=Ring, NCCL_NVLS_ENABLE=0",
		"$ NCCL_NVLS_ENABLE=2 NCCL_CUMEM_ENABLE=-2 ./all_reduce_perf\n":                    "",
		"$ NCCL_MAX_CTAS=0 NCCL_MIN_NCHANNELS= NCCL_NVLS_NCHANNELS=16 ./all_reduce_perf\n": "",
		"$ ./all_reduce_perf -g 8\n": "",
		"$ mpirun -x NCCL_IB_DISABLE=0 -x NCCL_P2P_DISABLE=0 ./all_reduce_perf\n": "",
		"$ mpirun -x NCCL_ALGO= ./all_reduce_perf\n":                              "",
		table + "export NCCL_ALGO=Tree\n$ ./all_reduce_perf -g 8\n":               "log:31: a line above the table says NCCL_ALGO=Tree",
		table + "export NCCL_MAX_CTAS=8\n$ ./all_reduce_perf -g 8\n":              "log:31: a line above the table says NCCL_MAX_CTAS=8",
	} {
		t.Run(before[:20], func(t *testing.T) {
			c := ncclCase{log: before + table, points: all}
			if strings.HasPrefix(before, table) {
				c.points = append(all[:3:3], all...)
			}
			if note != "" {
				c.notes = []string{note + ": the times are of that setting"}
			}
			c.check(t)
			got, err := ncclImport(ncclTestsFormat(), c.o, ncclLog(c.log))
			if err != nil || note == "" && len(got.report.Notes) > 0 {
				t.Errorf("error %v, notes %q", err, got.report.Notes)
			}
		})
	}
}

// Plans reduce by sums: times of other operators, which -o asks for, are another shape's. The
// column says nothing where nothing is reduced.
func TestNCCLOperators(t *testing.T) {
	for _, kind := range []string{"all_reduce", "reduce_scatter"} {
		l := written(kind, 8)
		points := threePoints(ncclCollective(kind).kind, h100of8, kind == "all_reduce")
		other := func(redop string) writtenLog {
			o := l
			o.id = redop + "      -1"
			return o
		}
		all := l.sampleRows()
		for _, redop := range []string{"prod", "max", "min", "avg", "mulsum"} {
			all += other(redop).sampleRows()
		}
		avg, left := other("avg"), map[string]int{errOperator.Error(): 3}
		for _, c := range []ncclCase{
			{name: "all", log: rankLines(8, 8, h100Text) + l.head() + all, points: points, drops: map[string]int{errOperator.Error(): 15}, flags: []string{noAverage}},
			{name: "one of each", log: l.sample() + "# Avg bus bandwidth    : 184.033\n" + avg.sample(), points: points, drops: left, flags: []string{noAverage}},
			{name: "another alone", log: avg.sample(), fails: ErrNothing.Error(), drops: left, flags: []string{noAverage}},
			{name: "JSON", log: jsonLog(kind+"_perf", jsonConfig, avg.jsonRows(), `}`), fails: ErrNothing.Error(), drops: left, flags: []string{noAverage}},
		} {
			if c.name == "one of each" && kind == "reduce_scatter" {
				c.flags = append(c.flags, "is not that of the rows")
			}
			t.Run(kind+" "+c.name, c.check)
		}
	}
	moves := written("sendrecv", 8)
	moves.id = "avg      -1"
	ncclCase{log: moves.sample(), points: threePoints(op.KindSendRecv, h100of8, false), flags: []string{noAverage}}.check(t)
}

// Settings that keep the GPUs of a node apart take their links away: what joins them is asked
// for. On several nodes the network joins them as before.
func TestNCCLApart(t *testing.T) {
	l := written("all_reduce", 8)
	table := l.sample() + "# Avg bus bandwidth    : 184.033\n"
	two := rankLines(8, 4, h100Text) + l.head() + l.sampleRows() + "# Avg bus bandwidth    : 184.033\n"
	for before, setting := range map[string]string{
		"$ NCCL_P2P_DISABLE=1 ./all_reduce_perf -g 8\n":                          "NCCL_P2P_DISABLE=1",
		"$ mpirun -x NCCL_P2P_LEVEL=LOC ./all_reduce_perf\n":                     "NCCL_P2P_LEVEL=LOC",
		"export NCCL_P2P_LEVEL=0\n":                                              "NCCL_P2P_LEVEL=0",
		"host0:100:100 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to LOC\n": "NCCL_P2P_LEVEL set by environment to LOC",
	} {
		t.Run(setting, func(t *testing.T) {
			ncclCase{log: before + table, fails: "log:13: the log says " + setting + ", so that the GPUs of the node do not talk to each other directly; say over what they talk with --link"}.check(t)
			note := []string{"a line above the table says " + setting}
			ncclCase{log: before + table, o: Options{Link: "shm"}, points: threePoints(op.KindAllReduce, "8 h100_sxm/nccl over shm", true), notes: note}.check(t)
			ncclCase{log: before + two, points: threePoints(op.KindAllReduce, "8 h100_sxm/nccl over net on 2 nodes", true), notes: note}.check(t)
		})
	}
}

func TestNCCLPlaces(t *testing.T) {
	l := written("all_reduce", 8)
	point := func(on string) []string { return threePoints(op.KindAllReduce, on, true) }
	mixed := rankLines(4, 4, h100Text) + strings.NewReplacer("Rank  0", "Rank  4", "Rank  1", "Rank  5", "Rank  2", "Rank  6", "Rank  3", "Rank  7", "host0", "host1").Replace(rankLines(4, 4, a100Text))
	split := strings.NewReplacer("Rank  4 Group  0", "Rank  4 Group  1", "Rank  5 Group  0", "Rank  5 Group  1", "Rank  6 Group  0", "Rank  6 Group  1", "Rank  7 Group  0", "Rank  7 Group  1").Replace(rankLines(8, 4, h100Text))
	four := written("all_reduce", 4)
	visible := rankLines(8, 8, h100Text)
	for i := range 8 {
		visible = strings.Replace(visible, fmt.Sprintf("device %2d", i), "device  0", 1)
	}
	classic := strings.ReplaceAll(rankLines(8, 8, h100Text), "Group  0 ", "")
	for i := range 8 {
		classic = strings.Replace(classic, fmt.Sprintf("[0000:%02x:00]", 16+i), "[0x00]", 1)
	}
	table := l.head() + l.sampleRows()
	for _, c := range []ncclCase{
		{name: "two nodes", log: rankLines(8, 4, h100Text) + table, points: point("8 h100_sxm/nccl over net on 2 nodes"), notes: []string{"called net"}},
		{name: "two nodes over a named link", log: rankLines(8, 4, h100Text) + table, o: Options{Link: "roce"}, points: point("8 h100_sxm/nccl over roce on 2 nodes")},
		{name: "two racks", log: rankLines(128, 4, "NVIDIA GB200") + written("all_reduce", 128).head() + written("all_reduce", 128).sampleRows(), points: threePoints(op.KindAllReduce, "128 gb200/nccl over net on 32 nodes", true), notes: []string{"called net; --link names them, and --nodes says how many racks they are, each of which nvlink joins"}},
		{name: "two trays", log: rankLines(8, 4, "NVIDIA GB200") + table, points: point("8 gb200/nccl over net on 2 nodes"), notes: []string{"called net; --link names them, and --nodes 1 says that they are one rack, whose nvlink joins them"}},
		{name: "two trays of a rack", log: rankLines(8, 4, "NVIDIA GB200") + table, o: Options{Nodes: 1}, points: point("8 gb200/nccl over nvlink")},
		{name: "two models", log: mixed + table, points: point("4 a100_sxm/nccl + 4 h100_sxm/nccl over net on 2 nodes")},
		{name: "an unknown model", log: strings.ReplaceAll(rankLines(8, 8, h100Text)+table, h100Text, "Acme X1"), o: Options{Device: "h100_sxm"}, points: point(h100of8)},
		{name: "two unknown models", log: strings.NewReplacer(h100Text, "Acme X1", a100Text, "Acme X2").Replace(mixed) + table, o: Options{Device: "h100_sxm"}, fails: `log:13: --device h100_sxm cannot stand for both "Acme X1" and "Acme X2"; import them apart`},
		{name: "several groups", log: split + four.head() + four.sampleRows(), points: point("4 h100_sxm/nccl over nvlink"), notes: []string{"2 groups were busy at the same time"}},
		{name: "every rank sees one device", log: visible + table, points: point(h100of8)},
		{name: "classic bus ids", log: classic + table, points: point(h100of8)},
		{name: "one process", log: "# nThread 2 nGpus 4 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n" + table, o: Options{Device: "h100_sxm"}, points: point(h100of8)},
		{name: "software of the user", log: rankLines(8, 8, h100Text) + table, o: Options{Stack: "NCCL 2.19.3"}, points: point("8 h100_sxm/nccl_2.19.3 over nvlink")},
		{name: "software of the log", log: "NCCL version 2.8.4+cuda11.1\n" + rankLines(8, 8, h100Text) + table, o: Options{Stack: "x"}, points: point("8 h100_sxm/nccl-2.8.4 over nvlink")},
		{name: "rccl", log: "# rccl-tests version 2.17.9-develop:2596ca5f71 rccl-headers=22803 rccl-library=22707\n" + rankLines(8, 8, "AMD Instinct MI300X") + table, points: point("8 mi300x/rccl-2.27.7 over xgmi")},
		{name: "a hash in the version", log: "# nccl-tests version 2.20.0 (1a2b3c4) nccl-headers=23004 nccl-library=23004\n" + rankLines(8, 8, h100Text) + table, points: point("8 h100_sxm/nccl-2.30.4 over nvlink")},
	} {
		c.flags = append(c.flags, noAverage)
		t.Run(c.name, c.check)
	}
	shared := strings.ReplaceAll(visible, "[0000:11:00]", "[0000:10:00]")
	// rccl-tests until 2023 tells how many ranks each GPU has.
	ranksPerGPU := "# nThreads: 1 nGpus: 4 nRanks: 2 minBytes: 8 maxBytes: 1073741824 step: 2(factor) warmupIters: 5 iters: 20 validation: 1\n"
	twoHosts := ncclCase{log: rankLines(8, 4, h100Text) + table, o: Options{Nodes: 1}, points: point("8 h100_sxm/nccl over net on 2 nodes"), flags: []string{noAverage, "name 2 hosts, --nodes says 1"}}
	t.Run("two nodes called one", twoHosts.check)
	for name, log := range map[string]string{"rank lines": shared + table, "ranks of a GPU": ranksPerGPU + table} {
		t.Run(name, func(t *testing.T) {
			o := Options{Device: "h100_sxm"}
			if name == "rank lines" {
				ncclCase{log: log, o: o, fails: "log:12: two ranks name host0 device 0 [0000:10:00], so that several nodes may go by one host name; say with --nodes"}.check(t)
				o.Nodes = 1
			}
			ncclCase{log: log, o: o, fails: "two ranks share a GPU"}.check(t)
			o.Link = "socket"
			ncclCase{log: log, o: o, points: point("8 h100_sxm/nccl over socket"), flags: []string{noAverage, "two ranks share a GPU"}}.check(t)
		})
	}
	alone := strings.NewReplacer("nGpus: 4", "nGpus: 8", "nRanks: 2", "nRanks: 1").Replace(ranksPerGPU)
	ncclCase{log: alone + table, o: Options{Device: "h100_sxm"}, points: point(h100of8), flags: []string{noAverage}}.check(t)
	ncclCase{log: strings.Replace(alone, "nGpus: 8", "nGpus: 3", 1) + table, o: Options{Device: "h100_sxm"}, fails: ErrNothing.Error(), drops: map[string]int{contradictoryRanks: 3}, flags: []string{noAverage, "every process has 3"}}.check(t)
}

// Names that nccl-tests cuts at their first dot, and those of containers, may be one for all
// nodes: --nodes is asked for where the lines of the ranks show it, and obeyed.
func TestNCCLHostNames(t *testing.T) {
	l := written("all_reduce", 16)
	table := l.head() + l.sampleRows()
	point := func(on string) []string { return threePoints(op.KindAllReduce, on, true) }
	one, flags := "16 h100_sxm/nccl over nvlink", []string{noAverage}
	lines := rankLines(16, 8, h100Text)
	for i := range 8 {
		lines = strings.ReplaceAll(lines, fmt.Sprintf("[0000:%02x:00]", 24+i), fmt.Sprintf("[0000:%02x:00]", 16+i))
	}
	named := func(name string) string { return strings.NewReplacer("host0", name, "host1", name).Replace(lines) }
	vague := named("local")
	for i := range 8 {
		vague = strings.ReplaceAll(vague, fmt.Sprintf("[0000:%02x:00]", 16+i), "[0x00]")
	}
	own := strings.NewReplacer(" host0", "local", " host1", "local").Replace(rankLines(16, 16, h100Text))
	const ask = "so that several nodes may go by one host name; say with --nodes how many there were"
	for _, c := range []ncclCase{
		{name: "two names", log: lines + table, points: point("16 h100_sxm/nccl over net on 2 nodes"), flags: flags},
		{name: "one name", log: named("10") + table, fails: "log:20: two ranks name 10 device 0 [0000:10:00], " + ask},
		{name: "one name, a link given", log: named("10") + table, o: Options{Link: "roce"}, fails: ask},
		{name: "one name, two nodes", log: named("10") + table, o: Options{Nodes: 2}, points: point("16 h100_sxm/nccl over net on 2 nodes"), flags: flags},
		{name: "one name, one node", log: named("10") + table, o: Options{Nodes: 1}, fails: "two ranks share a GPU"},
		{name: "no buses", log: vague + table, fails: "two ranks name local device 0, " + ask},
		{name: "no buses, two nodes", log: vague + table, o: Options{Nodes: 2}, points: point("16 h100_sxm/nccl over net on 2 nodes"), flags: flags},
		{name: "no buses, one node", log: vague + table, o: Options{Nodes: 1}, points: point(one), flags: flags},
		{name: "sixteen devices of one node", log: own + table, points: point(one), flags: flags},
		{
			name: "processes of eight, JSON", log: jsonLog("all_reduce_perf", strings.ReplaceAll(jsonDevices(16, 8, 8), "host1", "host0"), l.jsonRows(), `}`),
			fails: "16 ranks name the host host0, and a node of h100_sxm has 8, " + ask,
		},
		{
			name: "processes of eight, JSON, two nodes", log: jsonLog("all_reduce_perf", strings.ReplaceAll(jsonDevices(16, 8, 8), "host1", "host0"), l.jsonRows(), `}`),
			o: Options{Nodes: 2}, points: point("16 h100_sxm/nccl-2.30.4 over net on 2 nodes"), flags: flags,
		},
	} {
		t.Run(c.name, c.check)
	}
}

func TestNCCLElementTypes(t *testing.T) {
	for name, want := range map[string]op.DType{
		"int8": op.I8, "uint8": op.I8, "char": op.I8, "int32": op.I32, "uint32": op.I32, "int64": op.I64, "uint64": op.I64,
		"half": op.F16, "bfloat16": op.BF16, "float": op.F32, "double": op.F64, "f8e4m3": op.FP8, "f8e5m2": op.FP8, "fp8_e4m3": op.FP8, "quad": "", "": "",
	} {
		if got := ncclElement(name); got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
	half := written("all_reduce", 8)
	half.dtype, half.bytes = "half", 2
	strange := written("all_reduce", 8)
	strange.dtype = "quad"
	log := rankLines(8, 8, h100Text) + half.head() + half.row(1<<20, 40, 41) + strange.row(1<<20, 40, 41)
	ncclCase{log: log, points: []string{"all_reduce [" + h100of8 + "] 1048576 f16: 40 41"}, drops: map[string]int{errElement.Error(): 1}, flags: []string{noAverage}}.check(t)
	// A float table whose counts are those of halves: size is 2 x count elements.
	odd := strings.Replace(half.row(1<<24, 150, 151), "half", "float", 1)
	log = rankLines(8, 8, h100Text) + half.head() + half.row(1<<20, 40, 41) + half.row(1<<22, 60, 61) + odd
	ncclCase{
		log: log, points: []string{"all_reduce [" + h100of8 + "] 1048576 f16: 40 41", "all_reduce [" + h100of8 + "] 4194304 f16: 60 61"},
		drops: map[string]int{errParts.Error(): 1}, flags: []string{noAverage, "is 0.5 x"},
	}.check(t)
}
