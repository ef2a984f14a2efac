package importer

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/parquet-go/parquet-go"
)

// attentionRow, gemmRow and messageRow have the columns of aiconfigurator's
// tables, as its collectors write them.
type attentionRow struct {
	Framework string  `parquet:"framework,optional,dict"`
	Version   string  `parquet:"version,optional,dict"`
	Device    string  `parquet:"device,optional,dict"`
	OpName    string  `parquet:"op_name,optional,dict"`
	Kernel    string  `parquet:"kernel_source,optional,dict"`
	Batch     int64   `parquet:"batch_size,optional"`
	ISL       int64   `parquet:"isl,optional"`
	Heads     int64   `parquet:"num_heads,optional"`
	KV        int64   `parquet:"num_key_value_heads,optional"`
	HeadDim   int64   `parquet:"head_dim,optional"`
	Window    int64   `parquet:"window_size,optional"`
	DType     string  `parquet:"attn_dtype,optional,dict"`
	KVDType   string  `parquet:"kv_cache_dtype,optional,dict"`
	Step      int64   `parquet:"step,optional"`
	Latency   float64 `parquet:"latency,optional"`
}

type encoderRow struct {
	Framework string  `parquet:"framework"`
	Version   string  `parquet:"version"`
	Device    string  `parquet:"device"`
	OpName    string  `parquet:"op_name"`
	Kernel    string  `parquet:"kernel_source"`
	Batch     int32   `parquet:"batch_size"`
	ISL       int32   `parquet:"isl"`
	Heads     int32   `parquet:"num_heads"`
	HeadDim   int32   `parquet:"head_dim"`
	DType     string  `parquet:"attn_dtype"`
	Latency   float32 `parquet:"latency"`
}

type gemmRow struct {
	Framework string  `parquet:"framework"`
	Version   string  `parquet:"version"`
	Device    string  `parquet:"device"`
	OpName    string  `parquet:"op_name"`
	Kernel    string  `parquet:"kernel_source"`
	DType     string  `parquet:"gemm_dtype"`
	M         int64   `parquet:"m"`
	N         int64   `parquet:"n"`
	K         int64   `parquet:"k"`
	Latency   float64 `parquet:"latency"`
}

type ncclPerfRow struct {
	Framework string  `parquet:"framework"`
	Version   string  `parquet:"version"`
	Device    string  `parquet:"device"`
	OpName    string  `parquet:"op_name"`
	Kernel    string  `parquet:"kernel_source"`
	DType     string  `parquet:"nccl_dtype"`
	GPUs      int64   `parquet:"num_gpus"`
	Size      int64   `parquet:"message_size"`
	Latency   float64 `parquet:"latency"`
}

type allReduceRow struct {
	Framework string  `parquet:"framework"`
	Version   string  `parquet:"version"`
	Device    string  `parquet:"device"`
	OpName    string  `parquet:"op_name"`
	Kernel    string  `parquet:"kernel_source"`
	DType     string  `parquet:"allreduce_dtype"`
	GPUs      int64   `parquet:"num_gpus"`
	Size      int64   `parquet:"message_size"`
	Latency   float64 `parquet:"latency"`
	Backend   string  `parquet:"backend"`
}

func parquetOf[T any](t testing.TB, rows []T, o ...parquet.WriterOption) string {
	t.Helper()
	var b bytes.Buffer
	w := parquet.NewGenericWriter[T](&b, o...)
	for len(rows) > 0 { // several row groups
		n := min(len(rows), 1000)
		if _, err := w.Write(rows[:n]); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		rows = rows[n:]
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func shapesOf(m made) []string {
	var all []string
	for _, p := range m.points {
		all = append(all, fmt.Sprintf("%s: %s %s %v", p.On, p.Op, p.Raw, p.Times))
	}
	return all
}

func TestAIConfiguratorTables(t *testing.T) {
	attention := []attentionRow{
		{"VLLM", "0.24.0", "NVIDIA H100 80GB HBM3", "context_attention", "vllm_flash_attn_fa3", 2, 6144, 64, 8, 64, 0, "bfloat16", "bfloat16", 0, 1.531104},
		{"TRTLLM", "1.3.0rc20", "NVIDIA H100 80GB HBM3", "context_attention", "torch_flow", 1, 4096, 96, 0, 128, 128, "bfloat16", "fp8", 0, 0.9},
		{"VLLM", "0.24.0", "NVIDIA H100 80GB HBM3", "context_attention", "x", 8, 1, 64, 8, 64, 0, "bfloat16", "bfloat16", 0, 0.01},
		{"VLLM", "0.24.0", "NVIDIA H100 80GB HBM3", "context_attention", "x", 8, 512, 64, 8, 64, 0, "bfloat16", "bfloat16", 512, 0.3},
		{"VLLM", "0.24.0", "NVIDIA H100 80GB HBM3", "generation_attention", "x", 8, 512, 64, 8, 64, 0, "bfloat16", "bfloat16", 0, 0.3},
		{"VLLM", "0.24.0", "NVIDIA H100 80GB HBM3", "context_attention", "x", 8, 16384, 64, 8, 64, 0, "bfloat16", "bfloat16", 0, 0.3},
	}
	encoder := []encoderRow{{"VLLM", "0.24.0", "NVIDIA H100 80GB HBM3", "encoder_attention", "vllm_vit_flash_attn_fa3", 4, 13, 2, 72, "bfloat16", 0.00625}}
	gemm := []gemmRow{
		{"TRTLLM", "1.0.0", "NVIDIA A100-SXM4-80GB", "gemm", "torch_flow", "bfloat16", 8192, 65536, 4096, 16.700587},
		{"TRTLLM", "1.0.0", "NVIDIA H200", "gemm", "torch_flow", "fp8", 1, 64, 64, 0.004},
		{"TRTLLM", "1.0.0", "NVIDIA H200", "gemm", "torch_flow", "fp8_block", 1, 64, 64, 0.004},
		{"TRTLLM", "1.0.0", "NVIDIA H200", "gemm", "torch_flow", "bfloat16", 0, 64, 64, 0.004},
	}
	nccl := []ncclPerfRow{
		{"TRTLLM", "2.27.3", "NVIDIA B200", "all_gather", "NCCL", "half", 8, 2048, 0.00814},
		{"TRTLLM", "2.27.3", "NVIDIA B200", "all_gather", "NCCL", "half", 8, 2048, 0.00727},
		{"TRTLLM", "2.23", "NVIDIA B200", "alltoall", "NCCL", "int8", 4, 4096, 0.00814},
		{"VLLM", "2021.17.2", "b60", "reduce_scatter", "oneCCL", "half", 2, 4096, 0.02},
	}
	reduce := []allReduceRow{
		{"vLLM", "0.24.0", "NVIDIA GB200", "all_reduce", "vLLM_custom_graph", "bfloat16", 4, 128, 0.004993, "vllm_graph"},
		{"vLLM", "0.24.0", "NVIDIA GB200", "all_reduce", "vLLM_custom_eager", "bfloat16", 4, 128, 0.053473, "vllm_eager"},
		{"TRTLLM", "1.3.0", "NVIDIA GB200", "all_reduce", "TRTLLM", "float16", 2, 128, 0.004993, ""},
		{"TRTLLM", "1.3.0", "NVIDIA GB200", "all_reduce", "TRTLLM", "float16", 8, 128, 0.004993, ""},
	}
	m := mustImport(t, aiconfiguratorFormat(), Options{},
		inMemory("context_attention_perf.parquet", parquetOf(t, attention, parquet.Compression(&parquet.Snappy))),
		inMemory("encoder_attention_perf.parquet", parquetOf(t, encoder, parquet.Compression(&parquet.Zstd))),
		inMemory("gemm_perf.parquet", parquetOf(t, gemm)), inMemory("nccl_perf.parquet", parquetOf(t, nccl)), inMemory("custom_allreduce_perf.parquet", parquetOf(t, reduce)))
	want := []string{
		`h100_sxm/vllm-0.24.0: attn_fwd {"mask":"diag","q_len":6144,"kv_len":6144,"q_heads":64,"kv_heads":8,"head_dim":64,"dtype":"bf16","kernel":"vllm_flash_attn_fa3","batch":2} [0.001531104]`,
		`h100_sxm/trtllm-1.3.0rc20: attn_fwd {"mask":"diag","q_len":4096,"kv_len":4096,"q_heads":96,"kv_heads":96,"head_dim":128,"dtype":"bf16","kernel":"torch_flow_kvfp8","window":128} [0.0009]`,
		`h100_sxm/vllm-0.24.0: attn_fwd {"mask":"full","q_len":13,"kv_len":13,"q_heads":2,"kv_heads":2,"head_dim":72,"dtype":"bf16","kernel":"vllm_vit_flash_attn_fa3","batch":4} [6.25e-06]`,
		`a100_sxm/trtllm-1.0.0: gemm {"pass":"fwd","m":8192,"n":65536,"k":4096,"dtype":"bf16"} [0.016700587]`,
		`h200_sxm/trtllm-1.0.0: gemm {"pass":"fwd","m":1,"n":64,"k":64,"dtype":"fp8"} [4e-06]`,
		`8 b200_sxm/nccl-2.27.3 over nvlink: all_gather {"group":8,"bytes":4096,"dtype":"f16"} [8.14e-06]`,
		`8 b200_sxm/nccl-2.27.3 over nvlink: all_gather {"group":8,"bytes":4096,"dtype":"f16"} [7.27e-06]`,
		`4 b200_sxm/nccl-2.23 over nvlink: all_to_all {"group":4,"bytes":4096,"dtype":"i8"} [8.14e-06]`,
		`2 b60/oneccl-2021.17.2 over pcie: reduce_scatter {"group":2,"bytes":8192,"dtype":"f16"} [2e-05]`,
		`4 gb200/vllm-0.24.0-graph over nvlink: all_reduce {"group":4,"bytes":256,"dtype":"bf16"} [4.993e-06]`,
		`4 gb200/vllm-0.24.0-eager over nvlink: all_reduce {"group":4,"bytes":256,"dtype":"bf16"} [5.3473e-05]`,
		`2 gb200/trtllm-1.3.0-graph over nvlink: all_reduce {"group":2,"bytes":256,"dtype":"f16"} [4.993e-06]`,
	}
	if got := shapesOf(m); !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	reasons := []string{
		"2 " + decodeRow, "1 " + prefixRow, "1 " + tooFast, "1 gemm_dtype is no precision that is known", "1 the shape's m is not possible",
		"1 more GPUs than a node of gb200 has (4); say how many nodes with --nodes",
	}
	if got := m.report.reasons(); !slices.Equal(got, reasons) {
		t.Errorf("%q\nwant %q", got, reasons)
	}
	if first := m.report.Dropped[0].First; first != "context_attention_perf.parquet:row 3" {
		t.Errorf("first %q", first)
	}
	if len(m.report.Flags) != 1 || !strings.Contains(m.report.Flags[0], tooFast) {
		t.Errorf("flags %q", m.report.Flags)
	}
}

// Older versions wrote the same columns as text.
func TestAIConfiguratorText(t *testing.T) {
	m := mustImport(t, aiconfiguratorFormat(), Options{}, inMemory("nccl_perf.txt", "framework,version,device,op_name,kernel_source,nccl_dtype,num_gpus,message_size,latency\n"+
		"TRTLLM,2.26.2,NVIDIA H100 80GB HBM3,all_reduce,NCCL,half,8,536870912,3.94\n"))
	if got := shapesOf(m); len(got) != 1 || got[0] != `8 h100_sxm/nccl-2.26.2 over nvlink: all_reduce {"group":8,"bytes":1073741824,"dtype":"f16"} [0.00394]` {
		t.Errorf("%q", got)
	}
}

func TestAIConfiguratorRefusals(t *testing.T) {
	type moe struct {
		DType string  `parquet:"moe_dtype"`
		Time  float64 `parquet:"latency"`
	}
	type nested struct {
		Sizes []int64 `parquet:"message_size"`
	}
	whole := parquetOf(t, []gemmRow{{Device: "l4", DType: "bfloat16", M: 1, N: 1, K: 1, Latency: 1}})
	for text, want := range map[string]string{
		parquetOf(t, []moe{{"fp8", 1}}):               `x:1: the columns "moe_dtype,latency" are of no table that is known`,
		parquetOf(t, []nested{{[]int64{1}}}):          "x: the column message_size holds lists or groups",
		whole[:len(whole)/2]:                          "x: does not end as a parquet file does",
		"PAR1":                                        "x: does not end as a parquet file does",
		"PAR1" + strings.Repeat("\x00", 1000):         "x: ",
		whole[:len(whole)-8] + "\xff\xff\xff\xf0PAR1": "x: does not end as a parquet file does",
		whole[:len(whole)-60] + strings.Repeat("?", 40) + whole[len(whole)-20:]:                 "x: ",
		whole[:40] + "????" + whole[44:]:                                                        "",
		"framework,version\n":                                                                   `x:1: the columns "framework,version"`,
		parquetOf(t, []gemmRow{{Device: "?", DType: "bfloat16", M: 1, N: 1, K: 1, Latency: 1}}): `x:row 1: the GPU "?" is not known`,
	} {
		m, err := importInto(aiconfiguratorFormat(), Options{}, inMemory("x", text))
		if want == "" {
			continue // a damaged page may or may not show: it must only end
		}
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.40q: %v, %+v; want %s", text, err, m.report, want)
		}
	}
}

// Rows beyond one batch and one group are all there, in order.
func TestParquetStreams(t *testing.T) {
	var rows []gemmRow
	for i := range 2*parquetRows + 1000 + 7 {
		rows = append(rows, gemmRow{"TRTLLM", "1", "NVIDIA H200", "gemm", "k", "bfloat16", int64(i + 1), 64, 64, 0.004})
	}
	m := mustImport(t, aiconfiguratorFormat(), Options{}, inMemory("x", parquetOf(t, rows)))
	for i, p := range m.points {
		if g := p.Shape.(op.GEMM); int(g.M) != i+1 {
			t.Fatalf("point %d has m = %d", i, g.M)
		}
	}
	if len(m.points) != len(rows) {
		t.Errorf("%d points of %d rows", len(m.points), len(rows))
	}
}

// A file that claims more rows than its bytes can hold is not read to its end.
func TestParquetRowsAreBounded(t *testing.T) {
	seen := 0
	p := &parquetReader{source: "x", cells: make([]string, 1), most: 2, visit: csvVisitor{row: func(int, []string) error { seen++; return nil }}}
	row := parquet.Row{parquet.ValueOf("a").Level(0, 0, 0)}
	var err error
	for err == nil {
		err = p.one(row)
	}
	if seen != 2 || err.Error() != "x: more than 2 rows in so few bytes: the file is damaged; fetch it again" {
		t.Errorf("%d rows, %v", seen, err)
	}
	// The source's own density is far from the bound.
	path := filepath.Join(dataFolder(t, "recorded"), "aiconfigurator", "parquet_sample", "a100_sxm_trtllm_generation_attention_perf.parquet")
	if size := onDisk(t, path).Size; size*parquetDense < 100*5026 {
		t.Errorf("5026 rows in %d bytes are near the bound of %d a byte", size, parquetDense)
	}
}

// The source's own file is of the decode kernel: read whole, and nothing used.
func TestAIConfiguratorSample(t *testing.T) {
	path := filepath.Join(dataFolder(t, "recorded"), "aiconfigurator", "parquet_sample", "a100_sxm_trtllm_generation_attention_perf.parquet")
	m, err := importInto(aiconfiguratorFormat(), Options{}, onDisk(t, path))
	if err == nil || m.report.Rows != 5026 || len(m.report.Dropped) != 1 || m.report.Dropped[0].Reason != decodeRow {
		t.Errorf("%v, %+v", err, m.report)
	}
}

func FuzzAIConfigurator(f *testing.F) {
	f.Add(parquetOf(f, []gemmRow{{Framework: "x", Device: "l4", DType: "bfloat16", M: 1, N: 1, K: 1, Latency: 1}}))
	f.Add(parquetOf(f, []ncclPerfRow{{Device: "NVIDIA B200", OpName: "alltoall", DType: "half", GPUs: 2, Size: 9, Latency: 1}}, parquet.Compression(&parquet.Snappy)))
	f.Add("framework,version,device,gemm_dtype,m,n,k,latency\nx,1,l4,bfloat16,1,1,1,1\n")
	f.Fuzz(func(t *testing.T, text string) { importAnything(t, aiconfiguratorFormat(), text) })
}

// TensorRT-LLM's collector of 2025 writes beam_width into both of its tables; only
// the name of the op tells context from generation.
func TestAIConfiguratorBeamWidth(t *testing.T) {
	const head = "framework,version,device,op_name,kernel_source,batch_size,isl,num_heads,num_key_value_heads,head_dim,window_size,beam_width,attn_dtype,kv_cache_dtype,step,latency\n"
	row := func(op, isl, step string) string {
		return "TRTLLM,1.0.0,NVIDIA H100 80GB HBM3," + op + ",torch_flow,1," + isl + ",32,8,128,0,1,float16,float16," + step + ",0.75\n"
	}
	m := mustImport(t, aiconfiguratorFormat(), Options{}, inMemory("a.csv", head+row("context_attention", "4096", "0")+row("generation_attention", "1", "4096")))
	want := []string{`h100_sxm/trtllm-1.0.0: attn_fwd {"mask":"diag","q_len":4096,"kv_len":4096,"q_heads":32,"kv_heads":8,"head_dim":128,"dtype":"f16","kernel":"torch_flow"} [0.00075]`}
	if got := shapesOf(m); !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	if got := m.report.reasons(); !slices.Equal(got, []string{"1 " + decodeRow}) {
		t.Errorf("%q", got)
	}
}
