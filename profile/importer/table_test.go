package importer

import (
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/profile"
)

const attentionHead = "gpu,framework,version,kernel,dtype,kv_dtype,batch,seq_q,seq_kv,heads,kv_heads,head_dim,window,causal,latency_us\n"

func TestTableAttention(t *testing.T) {
	m := mustImport(t, tableFormat(), Options{}, inMemory("a.csv", attentionHead+
		"h100_sxm,vllm,0.24.0,vllm_flash_attn_fa3,bf16,bf16,2,6144,6144,64,8,64,0,1,1531.104\n"+
		"h100_sxm,vllm,0.24.0,vllm_flash_attn_fa3,bf16,fp8,1,4096,4096,64,8,64,128,1,300\n"+
		"h100_sxm,vllm,0.24.0,vllm_vit_flash_attn_fa3,fp16,fp16,1,1,1,2,2,72,0,0,8.224\n"+
		"h100_sxm,vllm,0.24.0,vllm_flash_attn_fa3,bf16,bf16,8,1,1,64,8,64,0,1,9\n"+
		"h100_sxm,vllm,0.24.0,vllm_flash_attn_fa3,bf16,bf16,8,16,4096,64,8,64,0,1,9\n"+
		"h100_sxm,vllm,0.24.0,vllm_flash_attn_fa3,bf16,bf16,0,16,16,64,8,64,0,1,9\n"+
		"h100_sxm,vllm,0.24.0,vllm_flash_attn_fa3,bf16,bf16,1,16,16,8,64,64,0,1,9\n"+
		"h100_sxm,vllm,0.24.0,vllm_flash_attn_fa3,bf16,bf16,1,16,16,64,24,64,0,1,9\n"+
		"h100_sxm,vllm,0.24.0,vllm_flash_attn_fa3,bf16,bf16,1,16,16,64,8,64,8,0,9\n"+
		"h100_sxm,vllm,0.24.0,vllm_flash_attn_fa3,fp4,bf16,1,16,16,64,8,64,0,1,9\n"+
		"h100_sxm,vllm,0.24.0,vllm_flash_attn_fa3,bf16,bf16,1,16,16,64,8,64,0,maybe,9\n"))
	want := []op.Attention{
		{Mask: op.Diag, QLen: 6144, KVLen: 6144, QHeads: 64, KVHeads: 8, HeadDim: 64, DType: op.BF16, Kernel: "vllm_flash_attn_fa3", Batch: 2},
		{Mask: op.Diag, QLen: 4096, KVLen: 4096, QHeads: 64, KVHeads: 8, HeadDim: 64, DType: op.BF16, Kernel: "vllm_flash_attn_fa3_kvfp8", Window: 128},
		{Mask: op.Full, QLen: 1, KVLen: 1, QHeads: 2, KVHeads: 2, HeadDim: 72, DType: op.F16, Kernel: "vllm_vit_flash_attn_fa3"},
	}
	for i, p := range m.points {
		if a := p.Shape.(op.AttnFwd).Attention; a != want[i] || p.On != "h100_sxm/vllm-0.24.0" {
			t.Errorf("%s: %+v\nwant %+v", p.On, a, want[i])
		}
	}
	if len(m.points) != 3 || m.points[0].Times[0] != 1531.104e-6 {
		t.Errorf("%d points, the first of %v s", len(m.points), m.points[0].Times)
	}
	reasons := []string{
		"1 " + decodeRow, "1 " + prefixRow, "1 batch is less than one", "1 the shape's kv_heads is not possible", "1 " + unevenHeads, "1 the shape's window is not possible",
		"1 dtype is no precision that is known", "1 causal is neither 1 nor 0",
	}
	if got := m.report.reasons(); !slices.Equal(got, reasons) {
		t.Errorf("%q\nwant %q", got, reasons)
	}
	if m.report.Dropped[0].First != "a.csv:5" || m.report.Dropped[1].First != "a.csv:6: 16 queries, 4096 keys" {
		t.Errorf("%+v", m.report.Dropped)
	}
	if d := m.header.Devices[0]; d.Model != "h100_sxm" || d.Stack != "vllm-0.24.0" || d.Parallel != 132 || d.Sheet.MemoryPerS != 3.35e12 {
		t.Errorf("device %+v", d)
	}
	if len(m.report.Notes) != 1 || !strings.Contains(m.report.Notes[0], "writing K and V") {
		t.Errorf("notes %q", m.report.Notes)
	}
}

// pandas writes a column of flags that lacks a value somewhere as 1.0 and 0.0.
func TestTableFlags(t *testing.T) {
	for text, want := range map[string]op.Mask{"1": op.Diag, "True": op.Diag, "Yes": op.Diag, "no": op.Full, "1.0": op.Diag, "0": op.Full, "false": op.Full, "0.0": op.Full, "2.0": "", "0.5": ""} {
		m, err := importInto(tableFormat(), Options{}, inMemory("a.csv", "gpu,dtype,batch,seq_q,seq_kv,heads,kv_heads,head_dim,causal,latency_us\nh100_sxm,bf16,1,4096,4096,32,8,128,"+text+",700\n"))
		switch {
		case want == "" && (!errors.Is(err, ErrNothing) || m.report.Dropped[0].Reason != "causal is neither 1 nor 0"):
			t.Errorf("%s: %v, %+v", text, err, m.report)
		case want != "" && (err != nil || m.points[0].Shape.(op.AttnFwd).Mask != want):
			t.Errorf("%s: %v, %+v", text, err, m.points)
		}
	}
}

// A row that names its pass is no forward time for want of a column that is read.
func TestTablePass(t *testing.T) {
	const attention, gemm = "h100_sxm,bf16,1,4096,4096,32,8,128,1,700,", "h100_sxm,bf16,4096,4096,4096,300,"
	for _, c := range []struct{ head, row string }{
		{"gpu,dtype,batch,seq_q,seq_kv,heads,kv_heads,head_dim,causal,latency_us,pass\n", attention},
		{"gpu,dtype,batch,seq_q,seq_kv,heads,kv_heads,head_dim,causal,latency_us,direction\n", attention},
		{"gpu,dtype,m,n,k,latency_us,Pass\n", gemm},
	} {
		m := mustImport(t, tableFormat(), Options{}, inMemory("a.csv", c.head+c.row+"fwd\n"+c.row+"Forward\n"+c.row+"\n"+c.row+"bwd\n"+c.row+"fwd+bwd\n"))
		if len(m.points) != 3 || !slices.Equal(m.report.reasons(), []string{"2 a time of another pass than the forward one"}) {
			t.Errorf("%s%d points, %q", c.head, len(m.points), m.report.reasons())
		}
	}
}

// The same rows in another order of columns, with quotes, spaces, a byte order
// mark, Windows line ends and another unit are the same recording.
func TestTableSpellings(t *testing.T) {
	want := mustImport(t, tableFormat(), Options{}, inMemory("a.csv", "gpu,framework,version,dtype,m,n,k,latency_us\nb200_sxm,trtllm,1.0,bf16,16384,65536,51200,86487.773\n"))
	for _, text := range []string{
		"latency_us,k,n,m,dtype,version,framework,gpu\n86487.773,51200,65536,16384,bf16,1.0,trtllm,b200_sxm\n",
		"latency_us,k,n,m,dtype,version,framework,gpu\n86487.773,51200.0,65536.0,16384.0,bf16,1.0,trtllm,b200_sxm\n",
		"\ufeffGPU,Framework,version,dtype,m,n,k,latency_us\r\nb200_sxm,trtllm,1.0,bf16,16384,65536,51200,86487.773\r\n",
		"\"gpu\",\"framework\",version,dtype,m,n,k,latency_us\n\"b200_sxm\" , trtllm ,\"1.0\",\"bf16\",16384,65536,51200,\"86487.773\"\n",
		"gpu,framework,version,dtype,m,n,k,latency_ms\nb200_sxm,trtllm,1.0,bf16,16384,65536,51200,86.487773\n",
		"gpu,framework,version,dtype,m,n,k,latency_s\nb200_sxm,trtllm,1.0,bf16,16384,65536,51200,0.086487773\n",
		"gpu,framework,version,dtype,m,n,k,latency_ns\nb200_sxm,trtllm,1.0,bfloat16,16384,65536,51200,86487773\n",
		"gpu,framework,version,dtype,m,n,k,note,latency_us\nNVIDIA B200,trtllm,1.0,torch.bfloat16,16384,65536,51200,\"a, \"\"b\"\"\",86487.773\n\n",
		"gpu,framework,version,dtype,m,n,k,latency_us\ngpu,framework,version,dtype,m,n,k,latency_us\nb200_sxm,TRTLLM,1.0,bf16,16384,65536,51200,8.6487773e4\n",
	} {
		got := mustImport(t, tableFormat(), Options{}, inMemory("a.csv", text))
		if len(got.points) != 1 || got.points[0].Key != want.points[0].Key || math.Abs(got.points[0].Times[0]/want.points[0].Times[0]-1) > 1e-12 || got.report.Rows != 1 {
			t.Errorf("%q: %+v, %q", text, got.points, got.report.reasons())
		}
	}
	if got := want.points[0].Times[0]; got != 0.086487773 {
		t.Errorf("86487.773 us are %v s", got)
	}
}

func TestTableCollectives(t *testing.T) {
	m := mustImport(t, tableFormat(), Options{}, inMemory("nccl.csv", "gpu,library,library_version,collective,dtype,num_gpus,message_bytes,latency_us\n"+
		"b200_sxm,nccl,2.27.3,all_gather,fp16,8,4096,8.14\n"+
		"b200_sxm,nccl,2.27.3,all_gather,fp16,8,4096,7.27\n"+
		"b200_sxm,nccl,2.27.3,alltoall,int8,4,1024,7\n"+
		"b200_sxm,nccl,2.27.3,reduce_scatter,bf16,2,512,6\n"+
		"b200_sxm,nccl,2.27.3,broadcast,bf16,2,512,6\n"+
		"b200_sxm,nccl,2.27.3,all_reduce,bf16,12,512,6\n"+
		"b200_sxm,nccl,2.27.3,all_reduce,bf16,1,512,6\n"+
		"b200_sxm,nccl,2.27.3,all_reduce,bf16,2,0,6\n"),
		inMemory("car.csv", "gpu,framework,version,mode,collective,dtype,num_gpus,message_bytes,latency_us\nb60,vllm,0.20.0,eager,all_reduce,bf16,2,256,38.268\n"),
		inMemory("vidur.csv", "gpu,collective,num_gpus,gpus_per_node,message_bytes,latency_us,latency_min_us,latency_max_us\nh100_sxm,all_reduce,16,8,2048,43,31,77\nh100_sxm,send_recv,2,1,2048,24,16,64\nh100_sxm,all_reduce,6,4,2048,43,31,77\nh100_sxm,all_reduce,4,0,2048,43,31,77\n"),
	)
	var got []string
	for _, p := range m.points {
		got = append(got, fmt.Sprintf("%s: %s %+v", p.On, p.Op, p.Shape))
	}
	want := []string{
		"8 b200_sxm/nccl-2.27.3 over nvlink: all_gather {Message:{Group:8 Bytes:4 KiB DType:f16}}",
		"8 b200_sxm/nccl-2.27.3 over nvlink: all_gather {Message:{Group:8 Bytes:4 KiB DType:f16}}",
		"4 b200_sxm/nccl-2.27.3 over nvlink: all_to_all {Message:{Group:4 Bytes:1 KiB DType:i8}}",
		"2 b200_sxm/nccl-2.27.3 over nvlink: reduce_scatter {Message:{Group:2 Bytes:512 B DType:bf16}}",
		"2 b60/vllm-0.20.0-eager over pcie: all_reduce {Message:{Group:2 Bytes:256 B DType:bf16}}",
		"16 h100_sxm over nvlink on 2 nodes: all_reduce {Message:{Group:16 Bytes:2 KiB DType:}}",
		"2 h100_sxm/oneway over nvlink on 2 nodes: send_recv {Message:{Group:2 Bytes:2 KiB DType:}}",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	reasons := []string{
		"1 " + noSuchCollective, "1 more GPUs than a node of b200_sxm has (8); say how many nodes with --nodes", "1 a collective of fewer than two ranks",
		"1 the shape's bytes is not possible", "1 the ranks do not fill their nodes", "1 gpus_per_node is less than one",
	}
	if got := m.report.reasons(); !slices.Equal(got, reasons) {
		t.Errorf("%q\nwant %q", got, reasons)
	}
}

// A group on several nodes bears the class of links inside one, unless --link says what
// lies between them; that is told.
func TestLinksBetweenNodesAreTold(t *testing.T) {
	const row = "gpu,collective,num_gpus,gpus_per_node,message_bytes,latency_us\nh100_sxm,all_reduce,16,8,2048,43\n"
	const note = "the links of groups on several nodes are called nvlink, as those inside a node of h100_sxm: --link names"
	for link, want := range map[string]bool{"": true, "ib": false} {
		m := mustImport(t, tableFormat(), Options{Link: link}, inMemory("x.csv", row))
		if got := strings.Contains(strings.Join(m.report.Notes, "\n"), note); got != want {
			t.Errorf("--link %q: notes %q", link, m.report.Notes)
		}
	}
}

// What --nodes makes of groups that would fit on one node is told.
func TestTableNodesOfSmallGroups(t *testing.T) {
	m := mustImport(t, tableFormat(), Options{Nodes: 2}, inMemory("a.csv", "gpu,collective,num_gpus,message_bytes,latency_us\nh100_sxm,all_reduce,16,1048576,60\nh100_sxm,all_reduce,8,1048576,30\n"))
	want := "groups of 8 are taken to sit on 2 nodes, though one node of h100_sxm holds them: "
	if len(m.points) != 2 || len(m.report.Notes) != 2 || !strings.HasPrefix(m.report.Notes[1], want) {
		t.Errorf("%d points, %q", len(m.points), m.report.Notes)
	}
}

func TestTableAsksForWhatItDoesNotSay(t *testing.T) {
	const head = "collective,num_gpus,message_bytes,latency_us\n"
	row := "gpu," + head + "a100_dgx,all_reduce,8,1048576,79\n"
	for _, c := range []struct {
		text string
		o    Options
		on   string
		want string // of the error
	}{
		{"gpu,dtype,m,n,k,latency_us\na100,fp16,1,64,64,9\n", Options{}, "", `a.csv:2: the GPU "a100" could be a100_pcie or`},
		{row, Options{}, "", `a.csv:2: the GPU "a100_dgx" is not known; the nearest names are a100_sxm, `},
		{row, Options{Device: "a100_sxm"}, "8 a100_sxm/a100_dgx over nvlink", ""},
		{row, Options{Device: "a100_sxm", Stack: "torch 2.1"}, "8 a100_sxm/torch_2.1 over nvlink", ""},
		{row, Options{Device: "a100_sxm", Link: "pcie", Nodes: 2}, "8 a100_sxm/a100_dgx over pcie on 2 nodes", ""},
		{row, Options{Device: "nvidia"}, "", `a.csv:2: the GPU "nvidia" is not known`},
		{row + "h100_box,all_reduce,8,1048576,79\n", Options{Device: "a100_sxm"}, "", `a.csv:3: --device a100_sxm cannot stand for both "a100_dgx" and "h100_box"; import them apart`},
		{head + "all_reduce,8,1048576,79\n", Options{}, "", "a.csv:2: the file does not name its GPU; say it with --device"},
		{head + "all_reduce,8,1048576,79\n", Options{Device: "NVIDIA H200"}, "8 h200_sxm over nvlink", ""},
		{"gpu," + head + "h100_nvl,all_reduce,2,1048576,79\n", Options{}, "", "a.csv:2: what links the GPUs of a node of h100_nvl is not known; say it with --link"},
		{"gpu," + head + "h100_nvl,all_reduce,2,1048576,79\n", Options{Link: "nvlink"}, "2 h100_nvl over nvlink", ""},
		{"gpu," + head + "my_gpu,all_reduce,2,1048576,79\n", Options{Sheets: map[string]Model{"my_gpu": {Name: "my_gpu", Fabric: "xgmi"}}}, "2 my_gpu over xgmi", ""},
	} {
		m, err := importInto(tableFormat(), c.o, inMemory("a.csv", c.text))
		switch {
		case c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)):
			t.Errorf("%q %+v: %v\nwant %s", c.text, c.o, err, c.want)
		case c.want == "" && (err != nil || m.points[0].On != c.on):
			t.Errorf("%q %+v: %v, %+v\nwant %s", c.text, c.o, err, m.points, c.on)
		}
	}
	m, err := importInto(tableFormat(), Options{Device: "a100_sxm", Nodes: 3}, inMemory("a.csv", row))
	if !errors.Is(err, ErrNothing) || m.report.reasons()[0] != "1 the ranks do not fill the 3 nodes of --nodes" {
		t.Errorf("8 ranks on 3 nodes: %v, %q", err, m.report.reasons())
	}
	// A GPU that is named beats --device, and the contradiction shows.
	m = mustImport(t, tableFormat(), Options{Device: "h100_sxm"}, inMemory("a.csv", "gpu,dtype,m,n,k,latency_us\nl4,fp16,1,64,64,9\n"))
	if m.points[0].On != "l4" || len(m.report.Flags) != 1 || !strings.Contains(m.report.Flags[0], "--device says h100_sxm") {
		t.Errorf("%s, flags %q", m.points[0].On, m.report.Flags)
	}
}

// A table without a column of precisions has that of --dtype.
func TestTableOfOnePrecision(t *testing.T) {
	for named, bare := range map[string]string{
		"gpu,dtype,m,n,k,latency_us\nh100_sxm,bf16,4096,4096,4096,300\n":                                                     "gpu,m,n,k,latency_us\nh100_sxm,4096,4096,4096,300\n",
		"gpu,dtype,batch,seq_q,seq_kv,heads,kv_heads,head_dim,causal,latency_us\nh100_sxm,bf16,1,4096,4096,32,8,128,1,700\n": "gpu,batch,seq_q,seq_kv,heads,kv_heads,head_dim,causal,latency_us\nh100_sxm,1,4096,4096,32,8,128,1,700\n",
		"gpu,dtype,collective,num_gpus,message_bytes,latency_us\nh100_sxm,bf16,all_gather,8,1048576,30\n":                    "gpu,collective,num_gpus,message_bytes,latency_us\nh100_sxm,all_gather,8,1048576,30\n",
	} {
		want := mustImport(t, tableFormat(), Options{}, inMemory("a.csv", named)).points
		got := mustImport(t, tableFormat(), Options{DType: op.BF16}, inMemory("a.csv", bare)).points
		if len(got) != 1 || got[0].Shape != want[0].Shape {
			t.Errorf("%q with --dtype bf16: %v, want %v", bare, got, want)
		}
	}
}

func TestTableRefusals(t *testing.T) {
	for text, want := range map[string]string{
		"":    "a.csv: holds no complete line",
		"gpu": "a.csv: holds no complete line",
		"gpu,dtype,m,n,k,latency\nh100_sxm,bf16,1,1,1,1\n":                 "a.csv:1: the column latency does not name its unit; call it latency_us, latency_ms or latency_s",
		"gpu,dtype,m,n,k\nh100_sxm,bf16,1,1,1\n":                           "a.csv:1: no time; the table needs a column latency_us",
		"gpu,dtype,m,n,k,latency_us,latency_ms\nh100_sxm,bf16,1,1,1,1,1\n": "a.csv:1: two times, latency_ms and latency_us",
		"gpu,dtype,m,m,n,k,latency_us\n":                                   `a.csv:1: column "m" is there twice`,
		"gpu,dtype,m,n,k,collective,num_gpus,message_bytes,latency_us\n":   "a.csv:1: the columns fit gemm and collectives; split the table",
		"h100_sxm,1,1,1,bf16,5\n":                                          `a.csv:1: holds numbers ("h100_sxm,1,1,1,bf16,5"), and no names of columns; name them in the first line`,
		"gpu,m,n,k,latency_us\nh100_sxm,1,1,1,1\n":                         `a.csv:1: the columns "gpu,m,n,k,latency_us" are those of gemm but for dtype; add that column, or say --dtype`,
		"x,y\n1,2\n":                          `a.csv:1: the columns "x,y" are of no table that is known; they need to hold one of: attention dtype,batch,`,
		"gpu;dtype;m;n;k;latency_us\n":        "a.csv:1: the columns seem to be separated by ';'; separate them by commas",
		"gpu\tdtype\tm\tn\n":                  `a.csv:1: the columns seem to be separated by '\t'; separate them by commas`,
		"[1,0]<stdout>:# nThread 1 nGpus 1\n": "a.csv: is a log of nccl-tests; import it with --from nccl-tests",
		"[1,0]<stdout>: hello\n":              "a.csv: is what a program printed, with a launcher's mark before every line",
		"{\"traceEvents\": []}\n":             "a.csv: is JSON, not a table",
		"<system version=\"1\">\n":            "a.csv: is XML",
		"PAR1\x00\x01\n":                      "a.csv: is a parquet file; import it with --from aiconfigurator",
		"\x1f\x8b\x08\x00\n":                  "a.csv: is compressed with gzip",
		"\xff\xfeg\x00p\x00u\x00,\x00\n\x00":  "a.csv: is UTF-16; save it as UTF-8",
		"# nThread 1 nGpus 8 minBytes 8\n":    "a.csv: is a log of nccl-tests; import it with --from nccl-tests",
		"layers,batch,seq,iteration_forward_ms,model,dtype\n2,1,2048,15,llama,bf16\n": "a.csv: times of whole models",
		strings.Repeat("x", 2<<20) + "\n":                                             "a.csv:1: a line of",
	} {
		_, err := importInto(tableFormat(), Options{}, inMemory("a.csv", text))
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.60q: %v\nwant %s", text, err, want)
		}
	}
}

// A row that cannot be read is counted; the others are used.
func TestTableBadRows(t *testing.T) {
	const good = "h100_sxm,bf16,4096,4096,4096,300\n"
	for row, want := range map[string]string{
		"h100_sxm,bf16,4096,4096,4096\n":             "the number of cells is not that of the header",
		"h100_sxm,bf16,4096,4096,4096,300,1\n":       "the number of cells is not that of the header",
		"h100_sxm,\"bf16,4096,4096,4096,300\n":       "a quote is not closed",
		"h100_sxm,\"bf16\"x,4096,4096,4096,300\n":    "a quote is not closed",
		"h100_sxm,bf16,4096,4096,4096,nan\n":         "the time is no positive number",
		"h100_sxm,bf16,4096,4096,4096,inf\n":         "the time is no positive number",
		"h100_sxm,bf16,4096,4096,4096,-300\n":        "the time is no positive number",
		"h100_sxm,bf16,4096,4096,4096,0\n":           "the time is no positive number",
		"h100_sxm,bf16,4096,4096,4096,\n":            "the time is no positive number",
		"h100_sxm,bf16,4096,4096,4096,300us\n":       "the time is no positive number",
		"h100_sxm,bf16,4096,4096,4096,1e12\n":        "a time of more than a day; is its unit another?",
		"h100_sxm,bf16,4096,4096,4096,0.3\n":         tooFast, // milliseconds under microseconds
		"h100_sxm,bf16,4096,4096,4096,0x1p9\n":       "the time is no positive number",
		"h100_sxm,bf16,0x1p12,4096,4096,300\n":       "m is no whole number",
		"h100_sxm,bf16,4096.5,4096,4096,300\n":       "m is no whole number",
		"h100_sxm,bf16,,4096,4096,300\n":             "m is no whole number",
		"h100_sxm,bf16,99999999999999999999,1,1,1\n": "m is no whole number",
		"h100_sxm,bf16,-4096,4096,4096,300\n":        "the shape's m is not possible",
		"h100_sxm,bf16,0,4096,4096,300\n":            "the shape's m is not possible",
		"h100_sxm,int8,4096,4096,4096,300\n":         "the shape's dtype is not possible",
		"h100_sxm,bf16,4096,4096,4096,300":           "the last line has no end: it may be cut short",
	} {
		m := mustImport(t, tableFormat(), Options{}, inMemory("a.csv", "gpu,dtype,m,n,k,latency_us\n"+good+row))
		if m.report.Points != 1 || len(m.report.Dropped) != 1 || m.report.Dropped[0].Reason != want || !strings.HasPrefix(m.report.Dropped[0].First, "a.csv:3") {
			t.Errorf("%q: %d points, %+v\nwant %s", row, m.report.Points, m.report.Dropped, want)
		}
	}
}

func TestKernelWords(t *testing.T) {
	for label, want := range map[string]string{
		"": "", "torch_flow": "torch_flow", "FA3": "fa3", "flash-attn 2.6.3": "flash_attn_2_6_3",
		strings.Repeat("k", 48): strings.Repeat("k", 48),
	} {
		if got := kernelOf(label); got != want {
			t.Errorf("%q: %q, want %q", label, got, want)
		}
	}
	if pipe, blank := kernelOf("a|b"), kernelOf("A b"); pipe == blank || kernelOf(pipe) != pipe {
		t.Errorf("%q, %q", pipe, blank)
	}
	a, b := kernelOf(strings.Repeat("k", 60)+"a"), kernelOf(strings.Repeat("k", 60)+"b")
	if len(a) != 48 || a == b {
		t.Errorf("%q, %q", a, b)
	}
}

// Every table of the recordings is read whole: as many rows as it has lines, and
// nothing dropped but the decode kernel's.
func TestRecordedTables(t *testing.T) {
	dir := dataFolder(t, "recorded")
	for pattern, device := range map[string]string{
		"aiconfigurator/h100_sxm/*.csv": "", "aiconfigurator/b60/*.csv": "", "aiconfigurator/gb200/nccl.csv": "", "aiconfigurator/*/custom_allreduce.csv": "",
		"vidur/a100/*.csv": "a100_sxm", "vidur/a100_dgx/*.csv": "a100_sxm", "galvatron/*/collectives.csv": "a100_sxm",
	} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		rows := 0
		var sources []Source
		for _, f := range files {
			rows += lines(t, f) - 1
			sources = append(sources, onDisk(t, f))
		}
		m := mustImport(t, tableFormat(), Options{Device: device}, sources...)
		if m.report.Rows != rows || len(m.report.Flags) != 0 {
			t.Errorf("%s: %d rows, the files have %d; flags %q", pattern, m.report.Rows, rows, m.report.Flags)
		}
		for _, d := range m.report.Dropped {
			if d.Reason != decodeRow {
				t.Errorf("%s: %+v", pattern, d)
			}
		}
	}
}

func lines(t *testing.T, path string) int {
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(data), "\n")
}

// Four values of a table, read here with other means, stand in the recording.
func TestRecordedValues(t *testing.T) {
	path := filepath.Join(dataFolder(t, "recorded"), "aiconfigurator", "h100_sxm", "context_attention_vllm.csv")
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	m := mustImport(t, tableFormat(), Options{}, onDisk(t, path))
	i := 0
	for _, row := range rows[1:] {
		if row[7] == "1" {
			continue // decode
		}
		a := m.points[i].Shape.(op.AttnFwd)
		got := fmt.Sprintf("%d %d %d %d %d %d %.3f", a.Blocks(), a.QLen, a.KVLen, a.QHeads, a.KVHeads, a.HeadDim, m.points[i].Times[0]*1e6)
		var us float64
		fmt.Sscan(row[14], &us)
		if want := fmt.Sprintf("%s %.3f", strings.Join(row[6:12], " "), us); got != want {
			t.Fatalf("row %d: %s, want %s", i, got, want)
		}
		i++
	}
	if i != len(m.points) {
		t.Errorf("%d points, want %d", len(m.points), i)
	}
}

func FuzzTable(f *testing.F) {
	f.Add("gpu,dtype,m,n,k,latency_us\nh100_sxm,bf16,4096,4096,4096,300\n")
	f.Add(attentionHead + "h100_sxm,vllm,0.24.0,fa3,bf16,fp8,2,64,64,64,8,64,0,1,15.1\n")
	f.Add("gpu,collective,num_gpus,gpus_per_node,message_bytes,latency_ms\na40,send_recv,2,1,2048,0.02\n")
	f.Add("\ufeff\"gpu\",n_gpus,impl,batch,seqlen_total,q_heads,head_dim,causal,fwd_only,ms_per_iter\r\nRTX 4090D,1,x,2,64,16,128,1,1,1e-1\r\n")
	f.Fuzz(func(t *testing.T, text string) { importAnything(t, tableFormat(), text) })
}

// importAnything imports a text and checks what holds for every import: it ends
// with an error or with a recording that its own reader accepts, and every row
// is a point or counted.
func importAnything(t *testing.T, f Format, text string) {
	m, err := importInto(f, Options{Device: "a100_sxm", DType: op.BF16}, inMemory("x", text))
	if err != nil {
		if m.report != nil && !errors.Is(err, ErrNothing) {
			t.Fatalf("a recording that cannot be read: %v", err)
		}
		return
	}
	dropped := 0
	for _, d := range m.report.Dropped {
		dropped += d.Rows
	}
	if m.report.Rows != len(m.points)+dropped || len(m.points) != m.report.Points {
		t.Fatalf("%d rows, %d points, %d dropped", m.report.Rows, len(m.points), dropped)
	}
}

const singleHead = "gpu,n_gpus,impl,batch,seqlen_total,q_heads,head_dim,causal,fwd_only,iters_per_s,ms_per_iter,tflops_total_reported\n"

// A row that tells its time twice, and not the same, is flagged and left out.
func TestSingleGPURowsThatContradictThemselves(t *testing.T) {
	for row, want := range map[string]string{
		"rtx_4090d,1,fa,2,4096,16,128,1,1,869.4,1.151,119.5\n": "",
		"rtx_4090d,1,fa,2,4096,16,128,1,1,869.4,1.151,120.9\n": "",
		"rtx_4090d,1,fa,2,4096,16,128,1,1,790.4,1.151,119.5\n": `iters_per_s is "790.4", and the time makes it 868.8`,
		"rtx_4090d,1,fa,2,4096,16,128,1,1,869.4,1.151,219.5\n": `tflops_total_reported is "219.5", and the time makes it 119.4`,
		"rtx_4090d,1,fa,2,4096,16,128,1,1,869.4,1.151,nan\n":   `tflops_total_reported is "nan", and the time makes it 119.4`,
	} {
		m, err := importInto(tableFormat(), Options{DType: op.F16}, inMemory("a.csv", singleHead+row))
		switch {
		case want == "" && (err != nil || len(m.report.Flags) > 0):
			t.Errorf("%s: %v, flags %q", row, err, m.report.Flags)
		case want != "" && (!errors.Is(err, ErrNothing) || len(m.report.Flags) != 1 || m.report.Flags[0] != "a.csv:2: "+want || m.report.Dropped[0].Reason != "a row that contradicts itself"):
			t.Errorf("%s: %v, %+v\nwant %s", row, err, m.report, want)
		}
	}
}

// So is one whose time lies outside its own least and most.
func TestTableTimesOutsideTheirBounds(t *testing.T) {
	const head = "gpu,collective,num_gpus,gpus_per_node,message_bytes,latency_us,latency_min_us,latency_max_us\na100_sxm,all_reduce,4,4,4096,"
	for row, want := range map[string]string{
		"50.0,50.2,77.0\n": "", "43,,77.0\n": "",
		"43,50.0,77.0\n":  `latency_min_us "50.0" is more than latency_us "43": `,
		"143,50.0,77.0\n": `latency_us "143" is more than latency_max_us "77.0": `,
		"60,77.0,50.0\n":  `latency_min_us "77.0" is more than latency_max_us "50.0": `,
	} {
		m, err := importInto(tableFormat(), Options{}, inMemory("a.csv", head+row))
		switch {
		case want == "" && (err != nil || len(m.report.Flags) > 0):
			t.Errorf("%s: %v, %+v", row, err, m.report)
		case want != "" && (!errors.Is(err, ErrNothing) || len(m.report.Flags) != 1 || !strings.HasPrefix(m.report.Flags[0], "a.csv:2: "+want) || m.report.Dropped[0].Reason != contradictoryRow):
			t.Errorf("%s: %v, %+v\nwant %s", row, err, m.report, want)
		}
	}
}

func TestProductsOfSeveralKernelsAreFlagged(t *testing.T) {
	const head = "gpu,framework,version,kernel,dtype,m,n,k,latency_us\n"
	m := mustImport(t, tableFormat(), Options{}, inMemory("a.csv", head+"l4,vllm,1,cublas,bf16,64,64,64,9\nl4,vllm,2,triton,bf16,64,64,64,9\n"))
	if len(m.report.Flags) != 0 {
		t.Errorf("one kernel a version: %q", m.report.Flags)
	}
	m = mustImport(t, tableFormat(), Options{}, inMemory("a.csv", head+"l4,vllm,1,cublas,bf16,64,64,64,9\nl4,vllm,1,triton,bf16,64,64,64,9\n"))
	if len(m.report.Flags) != 1 || !strings.Contains(m.report.Flags[0], `"cublas" and "triton"`) {
		t.Errorf("flags %q", m.report.Flags)
	}
	if len(m.points) != 1 || m.report.Dropped[0].First != `a.csv:3: "triton"` {
		t.Errorf("%d points, %+v", len(m.points), m.report.Dropped)
	}
	// Rows that are left out, and those of a precision, which is an axis, are pooled with none.
	m = mustImport(t, tableFormat(), Options{}, inMemory("a.csv", head+"l4,vllm,1,deepgemm,fp8_block,64,64,64,9\nl4,vllm,1,cutlass,bf16,0,64,64,9\nl4,vllm,1,cublas,bf16,64,64,64,9\nl4,vllm,1,triton,fp8,64,64,64,9\n"))
	if len(m.points) != 2 || len(m.report.Flags) != 0 {
		t.Errorf("%d points, flags %q", len(m.points), m.report.Flags)
	}
	m = mustImport(t, tableFormat(), Options{}, inMemory("a.csv", head+"l4,vllm,1,cublas,bf16,64,64,64,9\n"), inMemory("b.csv", head+"l4,vllm,1,triton,bf16,64,64,128,9\n"))
	if len(m.points) != 1 || len(m.report.Flags) != 1 {
		t.Errorf("kernels of two files: %d points, flags %q", len(m.points), m.report.Flags)
	}
	// A kernel by another spelling is the same one, and a row that names none no other; software by
	// another spelling is one device type.
	m = mustImport(t, tableFormat(), Options{}, inMemory("a.csv", head+"l4,vllm,1,cuBLAS,bf16,64,64,64,9\nl4,vllm,1,cublas,bf16,64,64,128,9\nl4,vllm,1,,bf16,64,64,256,9\n"))
	if len(m.points) != 3 || len(m.report.Flags) != 0 {
		t.Errorf("one kernel: %d points, flags %q", len(m.points), m.report.Flags)
	}
	m = mustImport(t, tableFormat(), Options{}, inMemory("a.csv", head+"l4,vLLM,1,cublas,bf16,64,64,64,9\nl4,vllm,1,triton,bf16,64,64,128,9\n"))
	if len(m.points) != 1 || len(m.report.Flags) != 1 {
		t.Errorf("one software: %d points, flags %q", len(m.points), m.report.Flags)
	}
}

// A column that counts rows under the name of a version must not fill memory.
func TestDeviceTypesAreBounded(t *testing.T) {
	for name, row := range map[string]func(i int) string{
		"more than 1000 device types": func(i int) string { return fmt.Sprintf("h100_sxm,nccl,%d,all_reduce,2,1024,9\n", i) },
		"1000 groups":                 func(i int) string { return fmt.Sprintf("h100_sxm,nccl,1,all_reduce,%d,1024,900\n", i+2) },
	} {
		var b strings.Builder
		b.WriteString("gpu,library,library_version,collective,num_gpus,message_bytes,latency_us\n")
		for i := range 1100 {
			b.WriteString(row(i))
		}
		if _, err := importInto(tableFormat(), Options{Nodes: 1}, inMemory("a.csv", b.String())); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// hashed is a word that stands for a text from which it cannot be told.
func hashed(word, text string) string { return word + "_" + profile.Fingerprint(text)[:8] }

func TestStacksAreWords(t *testing.T) {
	long := strings.Repeat("v", 100)
	for want, parts := range map[string][]string{
		"":                                      {"", " "},
		"nccl-2.27.3":                           {"NCCL", "2.27.3"},
		"tensorrt_llm-1_cu":                     {"TensorRT LLM", "1+cu", ""},
		hashed("a_b__c", "a/b\x00\uFFFDc"):      {"a/b\x00\xffc"},
		hashed(long[:55], long) + "-x":          {long, "x"},
		hashed(long[:55], long[:70]+"~") + "-x": {long[:70] + "~", "x"},
	} {
		got := stackOf(parts...)
		if got != want {
			t.Errorf("%q: %q, want %q", parts, got, want)
		}
		if err := h100(t).Of(got).Validate(); err != nil {
			t.Errorf("%q: %v", parts, err)
		}
	}
	for _, names := range [][]string{{long + "a", long + "b"}, {"1.0+cu126", "1.0/cu126", "1.0~cu126"}} {
		stacks := map[string]bool{}
		for _, n := range names {
			stacks[stackOf(n)] = true
		}
		if len(stacks) != len(names) {
			t.Errorf("%q: versions that are one: %v", names, stacks)
		}
	}
}
