package importer

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// nvHead is the head of an output on two H100.
func nvHead(version string, gpus int) string {
	text := "nvbandwidth Version: " + version + "\nBuilt from Git version: " + version + "\n\nCUDA Runtime Version: 12040\nCUDA Driver Version: 12040\nDriver Version: 550.54.15\n\n"
	for i := range gpus {
		text += fmt.Sprintf("Device %d: NVIDIA H100 80GB HBM3 (00000000:%02x:00)\n", i, 16+i)
	}
	return text + "\n"
}

// nvMatrixText is a test of an output.
func nvMatrixText(name string, sum string, rows ...string) string {
	arrow := "->"
	if strings.HasPrefix(name, "device_to_host") || strings.HasPrefix(name, "all_to_host") {
		arrow = "<-"
	}
	text := "Running " + name + ".\nmemcpy CE CPU(row) " + arrow + " GPU(column) bandwidth (GB/s)\n"
	head := ""
	for i := range strings.Fields(rows[0]) {
		head += fmt.Sprintf("%10d", i)
	}
	text += " " + head + "\n"
	for i, r := range rows {
		text += fmt.Sprintf(" %d %s\n", i, r)
	}
	if sum != "" {
		text += "\nSUM " + name + " " + sum + "\n"
	}
	return text + "\n"
}

const (
	h2dName = "host_to_device_memcpy_ce"
	d2hName = "device_to_host_memcpy_ce"
	nvSmall = "NOTE: You have chosen a buffer size that is smaller than the default buffer size. It is suggested to use the default buffer size (64MB) to achieve maximal peak bandwidth.\n"
)

type nvCase struct {
	name, log string
	o         Options
	points    []string
	drops     map[string]int
	flags     []string
	notes     []string
	fails     string
}

func (c nvCase) check(t *testing.T) {
	t.Helper()
	got, err := ncclImport(nvbandwidthFormat(), c.o, ncclLog(c.log))
	if c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) {
		t.Fatalf("error %v, want one with %q", err, c.fails)
	} else if c.fails == "" && err != nil {
		t.Fatalf("%v: %+v", err, got.report)
	}
	if got.report == nil {
		return
	}
	var points []string
	for _, p := range got.points {
		var size int64
		switch s := p.Shape.(type) {
		case op.H2D:
			size = int64(s.Bytes)
		case op.D2H:
			size = int64(s.Bytes)
		}
		points = append(points, fmt.Sprintf("%s [%s] %d: %.5g GB/s", p.Shape.Kind(), p.On, size, float64(size)/p.Times[0]/1e9))
	}
	if fmt.Sprint(points) != fmt.Sprint(c.points) {
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

func TestNVBandwidthText(t *testing.T) {
	const on = "h100_sxm/cuda-12.4"
	head := nvHead("v0.7", 2)
	h2d := nvMatrixText(h2dName, "110.60", "    55.20     55.40")
	two := []string{"h2d [" + on + "] 536870912: 55.2 GB/s", "h2d [" + on + "] 536870912: 55.4 GB/s"}
	for _, c := range []nvCase{
		{
			name: "both ways", log: head + h2d + nvMatrixText(d2hName, "107.00", "    53.00     54.00"),
			points: append(two[:2:2], "d2h ["+on+"] 536870912: 53 GB/s", "d2h ["+on+"] 536870912: 54 GB/s"), notes: []string{"at least the default of nvbandwidth v0.7, 512 MiB"},
		},
		{
			name: "cut off in a number", log: strings.TrimSuffix(head+nvMatrixText(h2dName, "", "    55.20     55.40"), ".40\n\n"), fails: ErrNothing.Error(),
			drops: map[string]int{"the test did not run to its end (the file ends within a row; if the row is whole, end its line)": 2},
		},
		{name: "two unknown models", log: strings.Replace(strings.Replace(head, "NVIDIA H100 80GB HBM3", "Acme X1", 1), "NVIDIA H100 80GB HBM3", "Acme X2", 1) + h2d, o: Options{Device: "h100_sxm"}, fails: `--device h100_sxm cannot stand for both "Acme X1" and "Acme X2"; import them apart`},
		{name: "cut off behind a row", log: strings.TrimSuffix(head+nvMatrixText(h2dName, "", "    55.20     55.40"), "\n"), points: two, notes: []string{"at least the default"}},
		{name: "an older default", log: nvHead("v0.6", 2) + h2d, points: []string{"h2d [" + on + "] 67108864: 55.2 GB/s", "h2d [" + on + "] 67108864: 55.4 GB/s"}, notes: []string{"64 MiB"}},
		{name: "a stated buffer", log: "$ ./nvbandwidth -b 1024 -t 0\n" + head + h2d, points: []string{"h2d [" + on + "] 1073741824: 55.2 GB/s", "h2d [" + on + "] 1073741824: 55.4 GB/s"}},
		{name: "a stated buffer, long", log: "$ /opt/nvbandwidth --bufferSize=256\n" + head + h2d, points: []string{"h2d [" + on + "] 268435456: 55.2 GB/s", "h2d [" + on + "] 268435456: 55.4 GB/s"}},
		{
			name: "a stated buffer and the default", log: "$ ./nvbandwidth -b 16 -t 0\n" + head + h2d + "$ ./nvbandwidth -t 0\n" + head + h2d,
			points: []string{"h2d [" + on + "] 16777216: 55.2 GB/s", "h2d [" + on + "] 16777216: 55.4 GB/s", two[0], two[1]}, notes: []string{"at least the default"},
		},
		{
			name: "a stated buffer and another run", log: "$ ./nvbandwidth -b 16 -t 0\n" + head + h2d + head + h2d,
			points: []string{"h2d [" + on + "] 16777216: 55.2 GB/s", "h2d [" + on + "] 16777216: 55.4 GB/s", two[0], two[1]}, notes: []string{"at least the default"},
		},
		{name: "a stated buffer without a version", log: "$ ./nvbandwidth -b 1024 -t 0\n" + strings.Replace(head, "nvbandwidth Version: v0.7\n", "", 1) + h2d, points: []string{"h2d [" + on + "] 1073741824: 55.2 GB/s", "h2d [" + on + "] 1073741824: 55.4 GB/s"}},
		{
			name: "a smaller buffer that is not stated", log: nvSmall + strings.Replace(head, "nvbandwidth Version: v0.7\n", "", 1) + h2d,
			fails: ErrNothing.Error(), drops: map[string]int{"the size of the copies is not known": 2}, flags: []string{"smaller than the default"},
		},
		{
			name: "a smaller buffer noted above the version", log: nvSmall + head + h2d + head + h2d,
			points: two, drops: map[string]int{"the size of the copies is not known": 2}, flags: []string{"smaller than the default"},
		},
		{
			name: "a smaller buffer noted above the second version", log: head + h2d + nvSmall + head + h2d,
			points: two, drops: map[string]int{"the size of the copies is not known": 2}, flags: []string{"smaller than the default"},
		},
		{
			name: "a smaller buffer noted below the version", log: strings.Replace(head, "\n", "\n"+nvSmall, 1) + h2d + head + h2d,
			points: two, drops: map[string]int{"the size of the copies is not known": 2}, flags: []string{"smaller than the default"},
		},
		{
			name: "a smaller buffer that is stated", log: "$ ./nvbandwidth -b 16\n" + nvSmall + head + h2d,
			points: []string{"h2d [" + on + "] 16777216: 55.2 GB/s", "h2d [" + on + "] 16777216: 55.4 GB/s"},
		},
		{name: "no version", log: strings.Replace(head, "nvbandwidth Version: v0.7\n", "", 1) + h2d, fails: ErrNothing.Error(), drops: map[string]int{"the size of the copies is not known": 2}, flags: []string{"names no version"}},
		{
			name: "CUDA's version in words and as a code", log: strings.Replace(head, "CUDA Runtime Version: 12040", "CUDA Runtime Version: 13.1 (13010)", 1) + h2d,
			points: []string{"h2d [h100_sxm/cuda-13.1] 536870912: 55.2 GB/s", "h2d [h100_sxm/cuda-13.1] 536870912: 55.4 GB/s"},
		},
		{name: "CUDA's version as nobody prints it", log: strings.Replace(head, "12040", "12", 1) + h2d, points: []string{"h2d [h100_sxm] 536870912: 55.2 GB/s", "h2d [h100_sxm] 536870912: 55.4 GB/s"}},
		{name: "not measured", log: head + nvMatrixText(h2dName, "55.20", "    55.20     N/A"), points: two[:1], drops: map[string]int{"N/A: not measured": 1}},
		{name: "more columns than GPUs", log: nvHead("v0.7", 1) + h2d, fails: ErrNothing.Error(), drops: map[string]int{"the matrix contradicts the rest of the output": 2}, flags: []string{"2 columns, but the list has 1 GPU"}},
		{name: "more rows than hosts", log: head + nvMatrixText(h2dName, "221.20", "    55.20     55.40", "    55.20     55.40"), fails: ErrNothing.Error(), drops: map[string]int{"the matrix contradicts the rest of the output": 4}, flags: []string{"2 rows"}},
		{name: "a sum that does not fit", log: head + nvMatrixText(h2dName, "120.60", "    55.20     55.40"), fails: ErrNothing.Error(), drops: map[string]int{"the matrix contradicts the rest of the output": 2}, flags: []string{"the cells add up to 110.6"}},
		{name: "above the link", log: head + nvMatrixText(h2dName, "155.20", "    55.20     100.00"), points: two[:1], drops: map[string]int{"faster than the link to the host": 1}, flags: []string{"100 GB/s, above the 64"}},
		{
			name: "the host behind NVLink-C2C", log: strings.ReplaceAll(head, "NVIDIA H100 80GB HBM3", "NVIDIA GB200") + nvMatrixText(h2dName, "460.00", "    200.00     260.00"), points: []string{"h2d [gb200/cuda-12.4] 536870912: 200 GB/s"},
			drops: map[string]int{"faster than the link to the host": 1}, flags: []string{"260 GB/s, above the 225"},
		},
		{name: "no sum", log: head + nvMatrixText(h2dName, "", "    55.20     55.40"), points: two},
		{name: "torn", log: head + h2d + "Running " + d2hName + ".\nmemcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)\n           0         1\n 0     53.", points: two, drops: map[string]int{"the matrix contradicts the rest of the output": 1}, flags: []string{"rows of different lengths"}},
		{name: "no value", log: head + h2d + "Running " + d2hName + ".\nmemcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)\n", points: two, drops: map[string]int{"the matrix contradicts the rest of the output": 1}, flags: []string{"0 rows"}},
		{name: "other tests", log: head + h2d + nvMatrixText("host_to_device_memcpy_sm", "110.60", "    55.20     55.40") + nvMatrixText("host_to_device_bidirectional_memcpy_ce", "40.00", "    20.00     20.00") +
			nvMatrixText("device_to_device_memcpy_read_ce", "700.00", "     N/A    350.00", "  350.00       N/A") + nvMatrixText("host_to_all_memcpy_ce", "100.00", "    50.00     50.00") +
			nvMatrixText("host_device_latency_sm", "1200.00", "    600.00     600.00") + "Waived:\n", points: two, drops: map[string]int{
			"copied by a kernel, not by the copy engine": 2, "copied while traffic ran the other way": 2, "no op of this vocabulary is such a copy": 4,
			"copied on all GPUs at once": 2, "a latency of single accesses, not a copy": 2,
		}},
		{name: "waived", log: head + h2d + "Running " + d2hName + ".\nWaived:\nRunning x_sm.\nERROR: out of memory\n", points: two, drops: map[string]int{"the test did not run to its end (waived)": 1, "the test did not run to its end (error)": 1}},
		{
			name: "further matrices", log: head + h2d + nvMatrixText("device_to_device_bidirectional_memcpy_read_ce", "", "     N/A    350.00", "  350.00       N/A") + "SUM device_to_device_bidirectional_memcpy_read_ce_read1 700.00\n\n" +
				strings.SplitN(nvMatrixText("x", "", "     N/A    340.00", "  340.00       N/A"), "\n", 2)[1] + "SUM device_to_device_bidirectional_memcpy_read_ce_read2 680.00\n", points: two,
			drops: map[string]int{"copied while traffic ran the other way": 4, "a matrix with no line (Running NAME.) above it, or a further one of a test": 4},
		},
		{name: "the name of a test cut out", log: head + strings.SplitN(h2d, "\n", 2)[1], fails: ErrNothing.Error(), drops: map[string]int{"a matrix with no line (Running NAME.) above it, or a further one of a test": 2}},
		{
			name: "alone, all is one", log: nvHead("v0.8", 1) + nvMatrixText("host_to_all_memcpy_ce", "55.20", "    55.20") + nvMatrixText("all_to_host_memcpy_ce", "53.00", "    53.00"),
			points: []string{"h2d [" + on + "] 536870912: 55.2 GB/s", "d2h [" + on + "] 536870912: 53 GB/s"},
		},
		{name: "decorated", log: "```\n" + strings.ReplaceAll(head+h2d, "\n", "\x1b[0m\r\n") + "```\n", points: two},
		{name: "an unknown GPU", log: strings.ReplaceAll(head+h2d, "NVIDIA H100 80GB HBM3", "Acme X1"), fails: `"Acme X1" is not known`},
		{name: "no GPU", log: "nvbandwidth Version: v0.7\n" + h2d, fails: "--device"},
		{name: "the user's GPU and software", log: "nvbandwidth Version: v0.7\n" + h2d, o: Options{Device: "h100_sxm", Stack: "cuda-12.8"}, points: []string{"h2d [h100_sxm/cuda-12.8] 536870912: 55.2 GB/s", "h2d [h100_sxm/cuda-12.8] 536870912: 55.4 GB/s"}},
		{name: "another tool", log: "hello\n", fails: "no test of nvbandwidth (Running NAME.); name what nvbandwidth printed"},
		{name: "JSON below other lines", log: "$ mpirun -n 8 ./nvbandwidth -j\n[host] UCX WARN no transport\n{\n\t\"nvbandwidth\" : \n\t{\n", fails: "log:4: the JSON of nvbandwidth -j stands below other lines; let the file begin with its {"},
	} {
		t.Run(c.name, c.check)
	}
}

// What launchers and pages put around an output changes nothing; a label that is not known is
// named.
func TestNVBandwidthDecorated(t *testing.T) {
	plain := nvHead("v0.7", 2) + nvMatrixText(h2dName, "110.60", "    55.20     55.40")
	each := func(before, after string) string {
		return strings.TrimSuffix(before+strings.ReplaceAll(plain, "\n", after+"\n"+before), before)
	}
	points := []string{"h2d [h100_sxm/cuda-12.4] 536870912: 55.2 GB/s", "h2d [h100_sxm/cuda-12.4] 536870912: 55.4 GB/s"}
	for name, log := range map[string]string{
		"srun":            each("0: ", ""),
		"time stamps":     each("2026-11-30T12:00:01.123Z ", ""),
		"kubectl":         each("[pod/nvb/ctr] ", ""),
		"pdsh":            each("host0: ", ""),
		"container":       each("worker-0  | ", ""),
		"Open MPI":        each("[1,0]<stdout>:", ""),
		"no-break blanks": strings.ReplaceAll(plain, " ", "\u00a0"),
		"page":            "<pre>" + plain + "</pre>",
		"page of lines":   each("<p>", "<br></p>"),
		"fences":          "```" + plain + "```\n",
	} {
		t.Run(name, func(t *testing.T) {
			nvCase{log: log, points: points, notes: []string{"at least the default of nvbandwidth v0.7, 512 MiB"}}.check(t)
		})
	}
	for name, failed := range map[string]string{"srun": each("0: ", ""), "kubectl": each("[pod/nvb/ctr] ", "")} {
		log := failed[:strings.Index(failed, "memcpy CE")] + "WAIVED\n"
		nvCase{name: name, log: log, fails: ErrNothing.Error(), drops: map[string]int{"the test did not run to its end (waived)": 1}}.check(t)
	}
	nvCase{log: each("pod-1 worker ", ""), fails: `log:11: a test of nvbandwidth behind "pod-1 worker ", which is no launcher's label that is known`}.check(t)
}

// nvObject is a -j output, its keys sorted as jsoncpp does.
func nvObject(devices, testcases, more string) string {
	return `{"nvbandwidth" : {"CUDA Runtime Version" : 12040, "Driver Version" : "550.54.15", "GPU Device list" : [` + devices + `], "Hostname": "h", "git_version" : "v0.8", "testcases" : [` + testcases + `], "version" : "v0.8"` + more + `}}`
}

func TestNVBandwidthJSON(t *testing.T) {
	const on = "h100_sxm/cuda-12.4"
	devices := `"0: NVIDIA H100 80GB HBM3 (00000000:19:00): (host0)", "1: NVIDIA H100 80GB HBM3 (00000000:2d:00): (host0)"`
	test := func(name, sum, matrix string) string {
		return `{"average": 55.3, "bandwidth_description" : "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)", "bandwidth_matrix" : [` + matrix + `], "name" : "` + name + `", "status" : "Passed", "sum" : ` + sum + `}`
	}
	h2d := test(h2dName, "110.6", `["55.2","55.4"]`)
	two := []string{"h2d [" + on + "] 536870912: 55.2 GB/s", "h2d [" + on + "] 536870912: 55.4 GB/s"}
	for _, c := range []nvCase{
		{name: "strings", log: nvObject(devices, h2d, ""), points: two},
		{name: "not measured", log: nvObject(devices, test(h2dName, "55.2", `["55.2","N/A"]`), ""), points: two[:1], drops: map[string]int{"N/A: not measured": 1}},
		{name: "waived", log: nvObject(devices, h2d+`,{"name":"`+d2hName+`","status":"Waived"}`, ""), points: two, drops: map[string]int{"the test did not run to its end (waived)": 1}},
		{
			name: "a smaller buffer", log: nvObject(devices, h2d, `, "warning" : "NOTE: You have chosen a buffer size that is smaller than the default buffer size."`), fails: ErrNothing.Error(),
			drops: map[string]int{"the size of the copies is not known": 2}, flags: []string{"smaller"},
		},
		{name: "CUDA's version in words", log: strings.Replace(nvObject(devices, h2d, ""), " 12040", ` "12.4 (12040)"`, 1), points: two},
		{name: "an error", log: nvObject(devices, h2d, `, "error" : "x"`), points: two, flags: []string{"reports an error"}},
		{name: "a matrix of another shape", log: nvObject(devices, test(h2dName, "55.2", `["55.2"]`), ""), fails: ErrNothing.Error(), drops: map[string]int{"the matrix contradicts the rest of the output": 1}, flags: []string{"1 column, but the list has 2 GPUs"}},
		{name: "no matrix", log: nvObject(devices, h2d+`,{"name":"`+d2hName+`","status":"Passed","bandwidth_matrix":null}`, ""), points: two, drops: map[string]int{"the matrix contradicts the rest of the output": 1}, flags: []string{"0 rows"}},
		{name: "torn", log: strings.TrimSuffix(nvObject(devices, h2d, ""), `, "version" : "v0.8"}}`), fails: ErrNothing.Error(), drops: map[string]int{"the size of the copies is not known": 2}, flags: []string{"in the middle", "names no version"}},
		{name: "another object", log: `{"version":1}`, fails: "no key nvbandwidth"},
	} {
		t.Run(c.name, c.check)
	}
}

// What a matrix is said to hold and the name of its test are two sources of one fact.
func TestNVBandwidthDescriptions(t *testing.T) {
	const on = "h100_sxm/cuda-12.4"
	two := []string{"h2d [" + on + "] 536870912: 55.2 GB/s", "h2d [" + on + "] 536870912: 55.4 GB/s"}
	for what, want := range map[string]string{
		"memcpy CE GPU(column) <- CPU(row) bandwidth (GB/s)":  "",
		"memcpy CE bandwidth (GB/s)":                          "",
		"memcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)":  `host_to_device_memcpy_ce: described as "memcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)", which is no such copy; `,
		"memcpy CE CPU(row) <-> GPU(column) bandwidth (GB/s)": "which is no such copy",
		"memcpy SM CPU(row) -> GPU(column) bandwidth (GB/s)":  "which is no such copy",
		"memcpy CE CPU(row) -> GPU(column) bandwidth (MB/s)":  "the tool writes GB/s",
	} {
		c := nvCase{points: two}
		if want != "" {
			c = nvCase{fails: ErrNothing.Error(), drops: map[string]int{"the matrix contradicts the rest of the output": 2}, flags: []string{want}}
		}
		test := `{"name":"` + h2dName + `","status":"Passed","bandwidth_description":"` + what + `","bandwidth_matrix":[["55.2","55.4"]],"sum":110.6}`
		c.log = nvObject(`"0: NVIDIA H100 80GB HBM3 (00000000:19:00): (host0)", "1: NVIDIA H100 80GB HBM3 (00000000:2d:00): (host0)"`, test, "")
		t.Run("JSON "+what, c.check)
		if strings.Contains(what, "GB/s") {
			text := nvMatrixText(h2dName, "110.60", "    55.20     55.40")
			c.log = nvHead("v0.7", 2) + strings.Replace(text, "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)", what, 1)
			t.Run("text "+what, c.check)
		}
	}
}

// The recorded output was partly edited by hand: the first two matrices have
// more columns than the machine has GPUs and are left out. With one GPU the
// tests that load the host from all of them are plain copies.
func TestNVBandwidthRecorded(t *testing.T) {
	dir := ncclTraces(t, "nvbandwidth")
	got, err := ncclImport(nvbandwidthFormat(), Options{}, ncclFile(t, filepath.Join(dir, "gh200_nvbandwidth.log")))
	if err != nil {
		t.Fatal(err)
	}
	matchFlags(t, "flags", got.report.Flags, []string{"3 columns, but the list has 1 GPU", "2 columns, but the list has 1 GPU"}, true)
	if len(got.points) != 2 {
		t.Fatalf("%d points, want 2", len(got.points))
	}
	for i, want := range []float64{295.15, 370.13} {
		if rate := float64(64<<20) / got.points[i].Times[0] / 1e9; !ncclSame(rate, want) {
			t.Errorf("point %d: %v GB/s, want %v", i, rate, want)
		}
	}
}

// FuzzNVBandwidth imports any text: the import ends, every row is counted once,
// and what comes out is valid.
func FuzzNVBandwidth(f *testing.F) {
	f.Add(nvHead("v0.7", 2) + nvMatrixText(h2dName, "110.60", "    55.20     55.40"))
	f.Add("$ nvbandwidth -b 1\nRunning " + d2hName + ".\nmemcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)\n 0\n 0 N/A\nSUM x 1\nWaived:\n")
	f.Add(nvObject(`"0: NVIDIA H100 80GB HBM3 (0:1:2): (h)"`, `{"name":"`+h2dName+`","status":"Passed","bandwidth_matrix":[["55.2"]],"sum":55.2}`, ""))
	f.Fuzz(func(t *testing.T, log string) {
		got, err := ncclImport(nvbandwidthFormat(), Options{Device: "h100_sxm"}, ncclLog(log))
		if got.report == nil {
			if err == nil {
				t.Fatal("neither a report nor an error")
			}
			return
		}
		dropped := 0
		for _, d := range got.report.Dropped {
			dropped += d.Rows
		}
		if got.report.Points+dropped != got.report.Rows {
			t.Errorf("%d points, %d dropped of %d rows", got.report.Points, dropped, got.report.Rows)
		}
		for _, p := range got.points {
			if err := p.Validate(); err != nil {
				t.Errorf("%+v: %v", p, err)
			}
		}
	})
}
