package importer

import (
	"fmt"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// jsonLog is a -J file as the writer makes it; secret stands for what its env
// holds.
func jsonLog(program, config, results, tail string) string {
	return `{"version":3,"start_time":"2026-01-01 00:00:00","args":["\/opt\/build\/` + program + `","-b","8"],"env":["TOKEN=secret"],"nccl_version":23004,"config":{` + config +
		`},"results":[` + results + `]` + tail
}

const jsonTail = `,"out_of_bounds":{"count":0,"okay":"true"},"average_bus_bandwidth":{"bandwidth":184.0326,"okay":"unchecked"},"errors":[""],"end_time":"2026-01-01 00:01:00"}`

// jsonConfig is one process with 8 GPUs, as a build without MPI writes it.
const jsonConfig = `"nthreads":1,"ngpus":8,"minimum_bytes":8,"maximum_bytes":1073741824,"step_factor":2,"aggregated_iterations":1,"graph":0,"blocking_collectives":"false","devices":[` +
	`{"rank":0,"group":0,"pid":1,"hostname":"host0","device":0,"device_hex":"0000:19:00","device_info":"NVIDIA H100 80GB HBM3"}]`

func jsonDevices(n, perProcess, perHost int) string {
	var all []string
	for i := 0; i < n; i += perProcess {
		all = append(all, fmt.Sprintf(`{"rank":%d,"group":0,"pid":1,"hostname":"host%d","device":%d,"device_hex":"0000:%02x:00","device_info":"NVIDIA H100 80GB HBM3"}`, i, i/perHost, i%perHost, 16+i))
	}
	return fmt.Sprintf(`"nthreads":1,"ngpus":%d,"maximum_bytes":1073741824,"devices":[%s]`, perProcess, strings.Join(all, ","))
}

func (l writtenLog) jsonRow(size int, us ...float64) string {
	k := ncclCollective(l.kind)
	count := size / l.bytes
	if k.parts {
		count /= l.n
	}
	redop := strings.Fields(l.id)[0]
	text := fmt.Sprintf(`{"size":%d,"count":%d,"type":"%s","redop":"%s","root":"    -1"`, size, count, l.dtype, redop)
	for i, t := range us {
		alg := float64(size) / t / 1e3
		text += fmt.Sprintf(`,"%s":{"time":%f,"alg_bw":%f,"bus_bw":%f,"nwrong":0.000000}`, []string{"out_of_place", "in_place"}[i], t, alg, alg*k.wire(float64(l.n)))
	}
	return text + `,"actual_iterations":20,"experiment_name":""}`
}

func (l writtenLog) jsonRows() string {
	return l.jsonRow(1<<20, 40, 41) + "," + l.jsonRow(1<<24, 150, 151) + "," + l.jsonRow(1<<28, 1500, 1510)
}

func TestNCCLJSON(t *testing.T) {
	l, gather := written("all_reduce", 8), written("alltoall", 8)
	on := "8 h100_sxm/nccl-2.30.4 over nvlink"
	all := threePoints(op.KindAllReduce, on, true)
	file := jsonLog("all_reduce_perf", jsonConfig, l.jsonRows(), jsonTail)
	one := []string{all[0]}
	row := func(change ...string) string {
		return jsonLog("all_reduce_perf", jsonConfig, l.jsonRow(1<<20, 40, 41)+","+strings.NewReplacer(change...).Replace(l.jsonRow(1<<24, 150, 151)), `}`)
	}
	for _, c := range []ncclCase{
		{name: "one process", log: file, points: all},
		{name: "indented", log: "\n " + strings.ReplaceAll(file, `,"`, ",\n  \""), points: all},
		{name: "with MPI", log: jsonLog("all_reduce_perf_mpi", jsonDevices(8, 1, 8), l.jsonRows(), jsonTail), points: all},
		{name: "processes of several GPUs", log: jsonLog("all_reduce_perf_mpi", jsonDevices(8, 4, 4), l.jsonRows(), jsonTail), points: threePoints(op.KindAllReduce, "8 h100_sxm/nccl-2.30.4 over net on 2 nodes", true)},
		{name: "average misspelt", log: strings.NewReplacer("average_bus_bandwidth", "average_bus_bandwidith", `"bandwidth"`, `"bandwidith"`).Replace(file), points: all},
		{name: "another average", log: strings.Replace(file, "184.0326", "190", 1), points: all, flags: []string{"190 GB/s is not that of the rows"}},
		{name: "alltoall", log: jsonLog("alltoall_perf", jsonConfig, gather.jsonRows(), `}`), points: threePoints(op.KindAllToAll, on, false), flags: []string{noAverage}},
		{name: "broadcast", log: jsonLog("broadcast_perf", jsonConfig, l.jsonRows(), jsonTail), fails: "holds broadcast only"},
		{name: "a forced algorithm", log: strings.Replace(file, `"TOKEN=secret"`, `"TOKEN=secret","NCCL_ALGO=Ring","X=NCCL_PROTO=LL",null,{"NCCL_PROTO":"LL"}`, 1), points: all, notes: []string{"log: env says NCCL_ALGO=Ring: the times are of that setting"}},
		{name: "GPUs kept apart", log: strings.Replace(file, `"TOKEN=secret"`, `"NCCL_P2P_DISABLE=1"`, 1), fails: "--link"},
		{name: "another form of env", log: strings.Replace(file, `["TOKEN=secret"]`, `{"NCCL_P2P_DISABLE":"1"}`, 1), points: all},
		{name: "two files in one", log: file + "\n" + file, points: append(all[:3:3], all...)},
		{name: "ends in the middle", log: file[:strings.Index(file, "268435456")], points: all[:2], drops: map[string]int{tornRow: 1}, flags: []string{"ends in the middle"}},
		{name: "closed early", log: jsonLog("all_reduce_perf", jsonConfig, l.jsonRows(), `}`), points: all, flags: []string{noAverage}},
		{name: "in place only", log: row(`"out_of_place":{"time":150.000000,"alg_bw":111.848107,"bus_bw":195.734187,"nwrong":0.000000}`, `"out_of_place":null`), points: append(one[:1:1], "all_reduce ["+on+"] 16777216 f32: 151"), flags: []string{noAverage}},
		{name: "unchecked", log: row(`"nwrong":0.000000`, `"nwrong":null`), points: all[:2], flags: []string{noAverage}},
		{name: "wrong", log: row(`"nwrong":0.000000`, `"nwrong":3.000000`), points: one, drops: map[string]int{errWrong.Error(): 1}, flags: []string{noAverage, "a wrong result"}},
		{name: "nan", log: row(`"time":150.000000`, `"time":"nan"`), points: append(one[:1:1], "all_reduce ["+on+"] 16777216 f32: 151"), flags: []string{noAverage, "16777216 bytes in NaN us, which is no time"}},
		{name: "launch times", log: row(`"time":`, `"cpu_time":`), points: append(one[:1:1], "all_reduce ["+on+"] 16777216 f32: 150 151"), flags: []string{noAverage}},
		{name: "per iteration and tuning", log: row(`,"actual`, `,"out_of_place_per_iter":{"min_us":1,"times_us":[1,2,3]},"tuning":{"algo":"ring"},"actual`), points: all[:2], flags: []string{noAverage}, notes: []string{"whether these were forced or the library chose them is not told"}},
		{name: "a row without a type", log: row(`"type":"float",`, ``), points: one, drops: map[string]int{tornRow: 1}, flags: []string{noAverage}},
		{name: "a row of other values", log: row(`"size":16777216`, `"size":"large"`), points: one, drops: map[string]int{tornRow: 1}, flags: []string{noAverage}},
		{name: "errors", log: strings.Replace(file, `"errors":[""]`, `"errors":["unhandled"]`, 1), points: all, flags: []string{"reports 1 error"}},
		{name: "a newer version", log: strings.Replace(file, `"version":3`, `"version":5`, 1), points: all, flags: []string{"version 5 of the JSON output"}},
		{name: "blocking", log: strings.Replace(file, `"blocking_collectives":"false"`, `"blocking_collectives":"true"`, 1), points: all, notes: []string{"-z 1"}},
		{name: "another tool's object", log: `{"traceEvents":[]}`, fails: "not a -J file of nccl-tests"},
		{name: "no JSON", log: `{ echo; }`, fails: "not a -J file of nccl-tests"},
	} {
		t.Run(c.name, c.check)
	}
}

// The environment in a -J file can hold secrets: nothing of it comes out.
func TestNCCLJSONKeepsEnvironmentOut(t *testing.T) {
	got, err := ncclImport(ncclTestsFormat(), Options{}, ncclLog(jsonLog("all_reduce_perf", jsonConfig, written("all_reduce", 8).jsonRows(), jsonTail)))
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprintf("%+v %+v", got.header, *got.report); strings.Contains(text, "secret") || strings.Contains(text, "/opt") {
		t.Errorf("the recording holds the environment: %s", text)
	}
}
