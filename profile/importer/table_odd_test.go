package importer

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// A row that cannot be placed costs that row: the others are used. That --device is
// wrong, or stands for two, is no row's fault.
func TestTableRowsWithoutAPlace(t *testing.T) {
	const gemm = "gpu,dtype,m,n,k,latency_us\n"
	const comm = "gpu,collective,num_gpus,message_bytes,latency_us\n"
	for _, c := range []struct {
		text   string
		o      Options
		points int
		drop   string // reasons and where the first is
	}{
		{gemm + "h100_sxm,bf16,64,64,64,9\n,bf16,64,64,64,9\n,bf16,128,64,64,9\n", Options{}, 1, "2 a row that names no GPU; say it with --device (a.csv:3)"},
		{gemm + "h1oo,bf16,64,64,64,9\nh100_sxm,bf16,64,64,64,9\n", Options{}, 1, `1 the GPU "h1oo" is not known, nor is a name like it (evenkeel show --references lists those that are); say which with --device, or describe it in a table with --devices (a.csv:2)`},
		{comm + "h100_nvl,all_reduce,2,1048576,79\nh100_sxm,all_reduce,2,1048576,79\n", Options{}, 1, "1 what links the GPUs of a node of h100_nvl is not known; say it with --link, such as nvlink or pcie (a.csv:2: 2 GPUs)"},
		{gemm + "my_box,bf16,64,64,64,9\n,bf16,128,64,64,9\nmy_box,bf16,32,64,64,9\n", Options{Device: "h100_sxm"}, 3, ""},
	} {
		m := mustImport(t, tableFormat(), c.o, inMemory("a.csv", c.text))
		got := ""
		for _, d := range m.report.Dropped {
			got += fmt.Sprintf("%d %s (%s)", d.Rows, d.Reason, d.First)
		}
		if len(m.points) != c.points || got != c.drop {
			t.Errorf("%q: %d points, %s\nwant %s", c.text, len(m.points), got, c.drop)
		}
	}
}

// Groups of several sizes in one table, some of them larger than a node: those fill nodes
// of the model, where neither a column nor --nodes, which is for every row, says how many. Of
// models that a rack joins by their own links they are left out: these may have been measured.
func TestTableGroupsThatFillNodes(t *testing.T) {
	const table = "gpu,collective,num_gpus,message_bytes,latency_us\ngb300,all_reduce,4,1048576,30\ngb300,all_reduce,16,1048576,60\nh100_sxm,all_reduce,16,1048576,90\n"
	const perNode = "gpu,collective,num_gpus,message_bytes,latency_us,gpus_per_node\ngb300,all_reduce,16,1048576,60,72\ngb300,all_reduce,4,1048576,30,\n"
	const racks = "more GPUs than a node of gb300 has (4); say how many nodes with --nodes, or in a column gpus_per_node, where a rack of up to 72 that nvlink joins is one node"
	for _, c := range []struct {
		text string
		o    Options
		on   string
		note string
		drop string
	}{
		{
			table,
			Options{},
			"4 gb300 over nvlink; 16 h100_sxm over net on 2 nodes",
			"groups of 16 h100_sxm are taken to fill 2 nodes of 8 GPUs, whose links are called net: a column gpus_per_node says otherwise; --link names the links",
			racks,
		},
		{
			table,
			Options{Link: "ib"},
			"4 gb300 over ib; 16 h100_sxm over ib on 2 nodes",
			"groups of 16 h100_sxm are taken to fill 2 nodes of 8 GPUs, whose links are called ib: a column gpus_per_node says otherwise; --link names the links",
			racks,
		},
		{table, Options{Nodes: 1}, "4 gb300 over nvlink; 16 gb300 over nvlink; 16 h100_sxm over nvlink", "", ""},
		{perNode, Options{}, "16 gb300 over nvlink; 4 gb300 over nvlink", "", ""},
	} {
		m := mustImport(t, tableFormat(), c.o, inMemory("a.csv", c.text))
		var on []string
		for _, p := range m.points {
			on = append(on, p.On)
		}
		var dropped []string
		for _, d := range m.report.Dropped {
			dropped = append(dropped, d.Reason)
		}
		if got := strings.Join(dropped, "\n"); got != c.drop {
			t.Errorf("%+v: left out %q, want %q", c.o, got, c.drop)
		}
		if got := strings.Join(on, "; "); got != c.on || c.note != "" && !slices.Contains(m.report.Notes, c.note) {
			t.Errorf("%+v: %s\nwant %s\nnotes %q", c.o, got, c.on, m.report.Notes)
		}
	}
}

// Tables joined of old and new ones have empty cells in the columns that the old ones
// lacked; aiconfigurator's have 0 for as many K/V heads as query heads.
func TestTableJoined(t *testing.T) {
	m := mustImport(t, tableFormat(), Options{}, inMemory("a.csv", attentionHead+
		"h100_sxm,,,fa3,bf16,,2,6144,6144,64,8,64,,1,1531.104\n"+
		"h100_sxm,,,fa3,bf16,,2,6144,6144,16,0,64,,1,1531.104\n"))
	want := []op.Attention{
		{Mask: op.Diag, QLen: 6144, KVLen: 6144, QHeads: 64, KVHeads: 8, HeadDim: 64, DType: op.BF16, Kernel: "fa3", Batch: 2},
		{Mask: op.Diag, QLen: 6144, KVLen: 6144, QHeads: 16, KVHeads: 16, HeadDim: 64, DType: op.BF16, Kernel: "fa3", Batch: 2},
	}
	for i, p := range m.points {
		if a := p.Shape.(op.AttnFwd).Attention; a != want[i] {
			t.Errorf("%+v\nwant %+v", a, want[i])
		}
	}
	if notes := m.report.Notes; len(m.points) != 2 || len(notes) != 1 || !strings.HasPrefix(notes[0], "0 K/V heads are taken") {
		t.Errorf("%d points, notes %q", len(m.points), notes)
	}
	m = mustImport(t, tableFormat(), Options{DType: op.F16}, inMemory("a.csv", "gpu,dtype,m,n,k,latency_us\nh100_sxm,,4096,4096,4096,300\n"))
	if g := m.points[0].Shape.(op.GEMM); g.DType != op.F16 {
		t.Errorf("a precision left to --dtype: %+v", g)
	}
}

// What other tools write for the same numbers and names.
func TestTableOtherSpellings(t *testing.T) {
	gemm := op.GEMM{Pass: op.Forward, M: 1000, N: 1024, K: 4096, DType: op.FP8}
	m := mustImport(t, tableFormat(), Options{}, inMemory("a.csv", "gpu,dtype,m,n,k,latency_us\n"+
		"h100_sxm,e4m3,1e3,1024.0,4.096e+03,300\n\" h100_sxm\",\"FP8 \",\" 1000\",\"1024 \",4096.00,\" 300\"\n"))
	if len(m.points) != 2 || m.points[0].Shape != gemm || m.points[1].Shape != gemm || m.points[1].Times[0] != 300e-6 {
		t.Errorf("%+v, %+v", m.points, m.report.Dropped)
	}
	for name, want := range map[string]op.Kind{
		"all-reduce": op.KindAllReduce, "All Gather": op.KindAllGather, "reduce-scatter": op.KindReduceScatter,
		"all-to-all": op.KindAllToAll, "sendrecv": op.KindSendRecv, "p2p": op.KindSendRecv, "P2P": op.KindSendRecv,
	} {
		kind, oneWay, known := collectiveOf(name)
		if kind != want || !known || oneWay != strings.EqualFold(name, "p2p") {
			t.Errorf("%s: %s, one way %t, known %t", name, kind, oneWay, known)
		}
	}
	for _, text := range []string{"1e3.5", "1.5", "1e30", "nan", "inf", "", "1 024", "1,024", "1e-1", "0x1p12", "0X1P12", "0x1000"} {
		if v, ok := wholeNumber(text); ok {
			t.Errorf("%q: %d", text, v)
		}
	}
}
