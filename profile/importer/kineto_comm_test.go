package importer

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// commKernelEvent is a kernel of a collective with its metadata.
func commKernelEvent(ts int, us float64, name string, in, out, group int, more map[string]any) string {
	args := map[string]any{
		"External id": ts, "correlation": ts + 5000, "device": 0, "Collective name": name, "In msg nelems": in, "Out msg nelems": out,
		"Group size": group, "dtype": "BFloat16", "In split size": "[]", "Out split size": "[]",
		"Process Group Name": "0", "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]",
	}
	for k, v := range more {
		args[k] = v
	}
	return event("kernel", "ncclDevKernel_Generic", 0, 20, ts, us, args)
}

func commOp(seq, id int, name string, in, out, group int) string {
	more := map[string]any{}
	if seq > 0 {
		more["Seq"] = seq
	}
	return commKernelEvent(1000*id, 50, name, in, out, group, more)
}

// onRank is a trace of one rank of a job on H100s.
func onRank(rank, world int, events ...string) string {
	return fmt.Sprintf(`{"deviceProperties":[{"id":0,"name":"NVIDIA H100 80GB HBM3","numSms":132}],
"distributedInfo":{"backend":"nccl","rank":%d,"world_size":%d,"nccl_version":"2.22.3"},"traceEvents":[%s]}`, rank, world, strings.Join(events, ","))
}

// commCase is an import of some ranks' traces.
type commCase struct {
	name   string
	texts  []string
	o      Options
	points []string
	reason string
}

func commCases() []commCase {
	seq := func(n int) map[string]any { return map[string]any{"Seq": n} }
	// Two ranks of one collective that ends at 10100: one came 90 us early.
	pair := func(name string, in, out int, a, b map[string]any) []string {
		return []string{
			onRank(0, 2, commKernelEvent(10000, 100, name, in, out, 2, a)),
			onRank(1, 2, commKernelEvent(10090, 10, name, in, out, 2, b)),
		}
	}
	point := func(kind op.Kind, bytes int) string {
		return fmt.Sprintf(`2 h100_sxm/nccl-2.22.3 over nvlink %s {"group":2,"bytes":%d,"dtype":"bf16"} 1e-05`, kind, bytes)
	}
	early := commKernelEvent(5000, 40, "allreduce", 4096, 4096, 2, seq(3))
	unnumbered := strings.Replace(early, `"Seq":3`, `"x":3`, 1)
	return []commCase{
		{"all_reduce", pair("allreduce", 4096, 4096, nil, nil), Options{}, []string{point(op.KindAllReduce, 8192)}, ""},
		{"all_gather", pair("_allgather_base", 4096, 8192, nil, nil), Options{}, []string{point(op.KindAllGather, 16384)}, ""},
		{"reduce_scatter", pair("_reduce_scatter_base", 8192, 4096, nil, nil), Options{}, []string{point(op.KindReduceScatter, 16384)}, ""},
		{"all_to_all", pair("all_to_all", 4096, 4096, nil, nil), Options{}, []string{point(op.KindAllToAll, 8192)}, ""},
		{"link given", pair("allreduce", 4096, 4096, nil, nil), Options{Link: "pcie"}, []string{strings.Replace(point(op.KindAllReduce, 8192), "nvlink", "pcie", 1)}, ""},
		{"nodes given", pair("allreduce", 4096, 4096, nil, nil), Options{Nodes: 2}, []string{strings.Replace(point(op.KindAllReduce, 8192), "nvlink", "nvlink on 2 nodes", 1)}, ""},
		{
			"uneven", pair("all_to_allv", 4096, 4096, map[string]any{"In split size": "[3, 1]"}, map[string]any{"In split size": "[2, 2]"}),
			Options{},
			[]string{`2 h100_sxm/nccl-2.22.3 over nvlink all_to_all_v {"matrix_bytes":[[6144,2048],[4096,4096]]} 1e-05`},
			"",
		},
		{"uneven, even splits", pair("all_to_allv", 4096, 4096, map[string]any{"In split size": "[2, 2]"}, map[string]any{"In split size": "[2, 2]"}), Options{}, []string{point(op.KindAllToAll, 8192)}, ""},
		{"even, but in other amounts than it receives", pair("all_to_all", 4096, 2048, nil, nil), Options{}, nil, "split sizes"},
		{"uneven, no splits", pair("all_to_allv", 4096, 4096, nil, nil), Options{}, nil, "split sizes"},
		{"uneven, splits cut off", pair("all_to_all", 4096, 4096, map[string]any{"In split size": "[1, 2, ...]"}, nil), Options{}, nil, "split sizes"},
		{"broadcast", pair("broadcast", 64, 64, nil, nil), Options{}, nil, "no such op"},
		{"coalesced", pair("allgather_into_tensor_coalesced", 64, 128, nil, nil), Options{}, nil, "no such op"},
		{"sizes contradict", pair("_allgather_base", 4096, 4096, nil, nil), Options{}, nil, "do not fit its number of ranks"},
		{"sums that are one rank's", pair("allreduce", 0, 0, nil, nil), Options{}, nil, "without elements"},
		{"unknown type", pair("allreduce", 64, 64, map[string]any{"dtype": "Quaternion"}, nil), Options{}, nil, "element type"},
		{"one rank alone", pair("allreduce", 64, 64, nil, nil)[:1], Options{}, nil, "all ranks"},
		{"a rank twice", []string{pair("allreduce", 64, 64, nil, nil)[0], pair("allreduce", 64, 64, nil, nil)[0]}, Options{}, nil, "claim to be one rank"},
		{"no rank", []string{onH100(commOp(0, 1, "allreduce", 8, 8, 2)), onH100(commOp(0, 1, "allreduce", 8, 8, 2))}, Options{}, nil, "does not say its rank"},
		{
			"rank in the group alone",
			[]string{onH100(commKernelEvent(10000, 100, "allreduce", 64, 64, 2, map[string]any{"Rank": 0})), onH100(commKernelEvent(10090, 10, "allreduce", 64, 64, 2, map[string]any{"Rank": 1}))},
			Options{},
			[]string{`2 h100_sxm/nccl over nvlink all_reduce {"group":2,"bytes":128,"dtype":"bf16"} 1e-05`},
			"",
		},
		{"ranks disagree", []string{onRank(0, 2, commOp(0, 1, "allreduce", 64, 64, 2)), onRank(1, 2, commOp(0, 1, "allreduce", 65, 65, 2))}, Options{}, nil, "disagree"},
		{"apart in time", []string{onRank(0, 2, commOp(0, 1, "allreduce", 64, 64, 2)), onRank(1, 2, commOp(0, 9, "allreduce", 64, 64, 2))}, Options{}, nil, "end together"},
		{
			"apart in time, numbered",
			[]string{onRank(0, 2, commOp(4, 1, "allreduce", 64, 64, 2)), onRank(1, 2, commOp(4, 9, "allreduce", 64, 64, 2))},
			Options{},
			[]string{`2 h100_sxm/nccl-2.22.3 over nvlink all_reduce {"group":2,"bytes":128,"dtype":"bf16"} 5e-05`},
			"",
		},
		{
			"numbered, one rank begins earlier",
			[]string{onRank(0, 2, early, commKernelEvent(10000, 100, "allreduce", 4096, 4096, 2, seq(4))), onRank(1, 2, commKernelEvent(10090, 10, "allreduce", 4096, 4096, 2, seq(4)))},
			Options{},
			[]string{point(op.KindAllReduce, 8192)},
			"not every rank recorded",
		},
		{
			"not numbered, one rank begins earlier",
			[]string{onRank(0, 2, unnumbered, commOp(0, 10, "allreduce", 4096, 4096, 2)), onRank(1, 2, commOp(0, 10, "allreduce", 4096, 4096, 2))},
			Options{},
			[]string{strings.Replace(point(op.KindAllReduce, 8192), "1e-05", "5e-05", 1)},
			"not every rank recorded",
		},
		{
			"not numbered, shifted by one",
			[]string{onRank(0, 2, unnumbered, commOp(0, 10, "allreduce", 4096, 4096, 2)), onRank(1, 2, commOp(0, 10, "allreduce", 4096, 4096, 2), commOp(0, 20, "allreduce", 4096, 4096, 2))},
			Options{},
			[]string{strings.Replace(point(op.KindAllReduce, 8192), "1e-05", "5e-05", 1)},
			"not every rank recorded",
		},
		{
			"not numbered, different numbers at other times",
			[]string{onRank(0, 2, unnumbered, commOp(0, 10, "allreduce", 4096, 4096, 2)), onRank(1, 2, commOp(0, 30, "allreduce", 4096, 4096, 2))},
			Options{},
			nil, "not every rank recorded",
		},
		{"bad duration", pair("allreduce", 64, 64, nil, map[string]any{"External id": 9})[:1], Options{Nodes: 1}, nil, "all ranks"},
		{"several kernels", []string{onRank(0, 2, commOp(1, 1, "allreduce", 64, 64, 2), commOp(1, 1, "allreduce", 64, 64, 2)), onRank(1, 2, commOp(1, 1, "allreduce", 64, 64, 2))}, Options{}, nil, "several kernels"},
		{"no class of links", pair("allreduce", 64, 64, nil, nil), Options{Sheets: map[string]Model{"h100_sxm": {Name: "h100_sxm", Parallel: 132}}}, nil, "--link"},
		{"group of one", []string{onRank(0, 1, commOp(1, 1, "allreduce", 64, 64, 1))}, Options{}, nil, "of one rank"},
	}
}

func TestKinetoCollectives(t *testing.T) {
	for _, c := range commCases() {
		got := importText(t, c.o, c.texts...)
		if !slices.Equal(got.points, c.points) || !strings.Contains(strings.Join(got.reasons(), ";"), c.reason) {
			t.Errorf("%s: %v, reasons %q, %v; want %v, %q", c.name, got.points, got.reasons(), got.err, c.points, c.reason)
		}
	}
}

// TestKinetoGroups: the traces of four ranks of a larger job hold two pairs, of
// which one is whole.
func TestKinetoGroups(t *testing.T) {
	in := func(group, ranks string) map[string]any {
		return map[string]any{"Process Group Name": group, "Process Group Ranks": ranks, "Seq": 1}
	}
	one := func(rank int, us float64, more map[string]any) string {
		return onRank(rank, 16, commKernelEvent(10000, us, "allreduce", 512, 512, 2, more))
	}
	got := importText(t, Options{}, one(0, 30, in("7", "[0, 1]")), one(1, 20, in("7", "[0, 1]")), one(2, 10, in("7", "[2, 3]")))
	want := `2 h100_sxm/nccl-2.22.3 over nvlink all_reduce {"group":2,"bytes":1024,"dtype":"bf16"} 2e-05`
	if !slices.Equal(got.points, []string{want}) || len(got.report.Dropped) != 1 || !strings.Contains(strings.Join(got.report.Notes, ";"), "at most 10 us") {
		t.Errorf("%v %+v", got.points, got.report)
	}
	var many []string
	for rank := range 16 {
		many = append(many, onRank(rank, 16, commOp(1, 1, "allreduce", 64, 64, 16)))
	}
	if got := importText(t, Options{}, many...); len(got.points) > 0 || !strings.Contains(strings.Join(got.reasons(), ""), "--nodes") {
		t.Errorf("16 ranks of GPUs of which a node has 8: %v %v", got.points, got.reasons())
	}
	if got := importText(t, Options{Nodes: 2, Link: "ib"}, many...); len(got.points) != 1 || !strings.Contains(got.points[0], "over ib on 2 nodes") {
		t.Errorf("16 ranks on 2 nodes: %v %v", got.points, got.reasons())
	}
}

// TestKinetoMetadata: a kernel without metadata takes that of the op that
// launched it, by id or by the annotation around the launch.
func TestKinetoMetadata(t *testing.T) {
	comms := event("cpu_op", "record_param_comms", 10, 10, 1000, 90, map[string]any{
		"External id": 3, "Collective name": "_allgather_base", "In msg nelems": 100, "Out msg nelems": 200, "Group size": 2, "dtype": "Float",
	})
	annotation := event("user_annotation", "nccl:_all_gather_base", 10, 10, 1010, 60, map[string]any{
		"External id": 4, "Input Dims": [][]int64{{100}}, "Input type": []string{"float"},
	})
	launch := event("cuda_runtime", "cudaLaunchKernelExC", 10, 10, 1020, 5, map[string]any{"correlation": 77})
	kernel := func(args map[string]any) string {
		return event("kernel", "ncclDevKernel_AllGather", 0, 3, 1100, 40, args)
	}
	for _, c := range []struct {
		name   string
		events []string
	}{
		{"by id", []string{comms, kernel(map[string]any{"External id": 3})}},
		{"by the id of the annotation inside", []string{kernel(map[string]any{"External id": 4}), annotation, comms}},
		{"by time", []string{comms, annotation, launch, kernel(map[string]any{"correlation": 77})}},
		{"by time, annotation alone", []string{annotation, launch, kernel(map[string]any{"correlation": 77, "External id": 77})}},
	} {
		got := importText(t, Options{}, onRank(0, 2, c.events...), onRank(1, 2, c.events...))
		want := `2 h100_sxm/nccl-2.22.3 over nvlink all_gather {"group":2,"bytes":800,"dtype":"f32"} 4e-05`
		if !slices.Equal(got.points, []string{want}) {
			t.Errorf("%s: %v %v %v", c.name, got.points, got.reasons(), got.err)
		}
	}
}

// TestKinetoLists: an exchange of lists of tensors tells what goes to whom; its
// group, in traces of 2023, is all ranks, or so many as are said.
func TestKinetoLists(t *testing.T) {
	rank := func(n, world int, dims string) string {
		head := fmt.Sprintf(`{"deviceProperties":[{"id":0,"name":"NVIDIA H100 80GB HBM3"}],"distributedInfo":{"rank":%d,"world_size":%d},`, n, world)
		return head + `"traceEvents":[{"ph":"X","cat":"user_annotation","name":"nccl:all_to_all","pid":1,"tid":1,"ts":100,"dur":50,"args":{"Input Dims":` + dims + `,"Input type":["float","float"]}},
{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":110,"dur":5,"args":{"External id":9,"correlation":9}},
{"ph":"X","cat":"kernel","name":"ncclKernel_SendRecv","pid":0,"tid":7,"ts":130,"dur":12,"args":{"External id":9,"correlation":9}}]}`
	}
	for _, c := range []struct {
		name, a, b string
		o          Options
		want       string
	}{
		{"even", rank(0, 2, "[[8],[2,4]]"), rank(1, 2, "[[8],[8]]"), Options{}, `2 h100_sxm/nccl over nvlink all_to_all {"group":2,"bytes":64,"dtype":"f32"} 1.2e-05`},
		{"uneven", rank(0, 2, "[[8],[4]]"), rank(1, 2, "[[3],[8]]"), Options{}, `2 h100_sxm/nccl over nvlink all_to_all_v {"matrix_bytes":[[32,16],[12,32]]} 1.2e-05`},
		{"one tensor", rank(0, 2, "[[8]]"), rank(1, 2, "[[8]]"), Options{}, ""},
		{"too few", rank(0, 2, "[[8],[4],[4]]"), rank(1, 2, "[[3],[8]]"), Options{}, ""},
		{"ranks not told", rank(0, 0, "[[8],[8]]"), rank(1, 0, "[[8],[8]]"), Options{}, ""},
		{"ranks given", rank(0, 0, "[[8],[8]]"), rank(1, 0, "[[8],[8]]"), Options{Ranks: 2}, `2 h100_sxm/nccl over nvlink all_to_all {"group":2,"bytes":64,"dtype":"f32"} 1.2e-05`},
	} {
		if got := importText(t, c.o, c.a, c.b); strings.Join(got.points, "") != c.want || c.want == "" && got.report.Rows == 0 {
			t.Errorf("%s: %v %v %v", c.name, got.points, got.reasons(), got.err)
		}
	}
}

// TestKinetoRecordedRanks: eight ranks of a job of 2023. The costs are the
// shortest kernels over the ranks, in microseconds as expected.json lists them
// rank by rank; the ranks' exchange of 3392 elements is uneven.
func TestKinetoRecordedRanks(t *testing.T) {
	dir := kinetoRecordings(t)
	var sources []Source
	for rank := range 8 {
		sources = append(sources, traceFile(fmt.Sprintf("%s/v100_8r_dlrm/rank%d.json.gz", dir, rank)))
	}
	report, points, err := importTraces(t, Options{}, sources...)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]float64{}
	add := func(kind op.Kind, bytes units.Bytes, d op.DType, us ...float64) {
		want[fmt.Sprintf("%s %d %s", kind, int64(bytes), d)] = us
	}
	add(op.KindAllToAll, 4*6144, op.F32, 10, 10)
	add(op.KindAllToAll, 8*24, op.I64, 8)
	add(op.KindAllToAll, 4*384, op.I32, 7)
	add(op.KindAllReduce, 4*394241, op.F32, 86)
	add(op.KindAllReduce, 4*112, op.F32, 20)
	add(op.KindAllReduce, 4*226960, op.F32, 69)
	for _, p := range points {
		var m op.Message
		switch s := p.Shape.(type) {
		case op.AllToAll:
			m = s.Message
		case op.AllReduce:
			m = s.Message
		}
		key := fmt.Sprintf("%s %d %s", p.Shape.Kind(), int64(m.Bytes), m.DType)
		us := want[key]
		if m.Group != 8 || len(us) == 0 || !near(us[0], p.Times[0]*1e6) {
			t.Errorf("%s over %d ranks: %v s, want %v us", key, m.Group, p.Times, us)
			continue
		}
		want[key] = us[1:]
	}
	if len(points) != 7 || !slices.Equal(report.Groups, []string{"8 v100_sxm_32gb/nccl over nvlink"}) {
		t.Errorf("%d points on %v: %+v", len(points), report.Groups, report.Dropped)
	}
	uneven := slices.ContainsFunc(report.Dropped, func(d Drop) bool { return strings.Contains(d.Reason, "uneven") && d.Rows == 8 })
	if !uneven {
		t.Errorf("the uneven all_to_all: %+v", report.Dropped)
	}
}

// TestKinetoNodes: a group of a job on two nodes is inside one of them or across
// both, by the ranks that the traces claim. Two ranks of two nodes were taken for
// neighbours.
func TestKinetoNodes(t *testing.T) {
	group := func(world int, ranks ...int) []string {
		var texts []string
		for i, r := range ranks {
			texts = append(texts, onRank(r, world, commKernelEvent(10000+90*i, 100-90*float64(i), "allreduce", 4096, 4096, 2, nil)))
		}
		return texts
	}
	const within, across = "2 h100_sxm/nccl-2.22.3 over nvlink all_reduce", "2 h100_sxm/nccl-2.22.3 over nvlink on 2 nodes all_reduce"
	for _, c := range []struct {
		name  string
		texts []string
		o     Options
		want  string // "" for no point
	}{
		{"neighbours", group(16, 8, 9), Options{}, within},
		{"neighbours, nodes given", group(16, 8, 9), Options{Nodes: 2}, within},
		{"two nodes", group(16, 0, 8), Options{}, ""},
		{"two nodes, given", group(16, 0, 8), Options{Nodes: 2}, across},
		{"one large node", group(16, 0, 8), Options{Nodes: 1}, within},
		{"half nodes", group(8, 3, 4), Options{Nodes: 2}, across},
		{"a job of unknown size", group(0, 3, 4), Options{Nodes: 2}, across},
	} {
		got := importText(t, c.o, c.texts...)
		if c.want == "" {
			if len(got.points) > 0 || len(got.reasons()) != 1 || !strings.Contains(got.reasons()[0], "--nodes") {
				t.Errorf("%s: %q, %q", c.name, got.points, got.reasons())
			}
			continue
		}
		if len(got.points) != 1 || !strings.HasPrefix(got.points[0], c.want+" ") {
			t.Errorf("%s: %q, %q, %v", c.name, got.points, got.reasons(), got.err)
		}
	}
}

// TestKinetoNumberOfOp: the rank, and in some builds the number of a collective,
// stand with the op alone. They match kernels of nodes whose clocks are a millisecond
// apart.
func TestKinetoNumberOfOp(t *testing.T) {
	rank := func(rank, ts int, us float64) string {
		op := strings.Replace(commKernelEvent(ts, 0, "allreduce", 4096, 4096, 2, map[string]any{"Seq": 7, "Rank": rank}), "ncclDevKernel_Generic", "record_param_comms", 1)
		return onH100(strings.Replace(op, `"cat":"kernel"`, `"cat":"cpu_op"`, 1), commKernelEvent(ts, us, "allreduce", 4096, 4096, 2, nil))
	}
	got := importText(t, Options{}, rank(0, 10000, 100), rank(1, 11090, 10))
	if want := []string{`2 h100_sxm/nccl over nvlink all_reduce {"group":2,"bytes":8192,"dtype":"bf16"} 1e-05`}; !slices.Equal(got.points, want) {
		t.Errorf("%q, %q, %v", got.points, got.reasons(), got.err)
	}
}
