package importer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

const vidurHead = ",time_stats.all_reduce.min,time_stats.all_reduce.max,time_stats.all_reduce.mean,time_stats.all_reduce.median,time_stats.all_reduce.std,rank,num_workers,size,collective,devices_per_node,max_devices_per_node\n"

func TestVidurNetwork(t *testing.T) {
	text := vidurHead +
		"0,0.031,0.077,0.05,0.043,0.01,0,2,2048,all_reduce,1,8\n" +
		"1,0.031,0.077,0.05,0.044,0.01,0,16,26624,all_reduce,8,8\n" +
		"2,0.031,0.077,0.05,0.045,0.01,1,2,2048,all_reduce,2,8\n" +
		"3,0.031,0.077,0.05,0.045,0.01,0,2,2048,broadcast,2,8\n" +
		"4,0.031,0.077,0.05,0,0.01,0,2,2048,all_reduce,2,8\n"
	if _, err := importInto(vidurFormat(), Options{}, inMemory("a.csv", text)); err == nil || !strings.Contains(err.Error(), "a.csv:2: the file does not name its GPU; say it with --device") {
		t.Errorf("without a GPU: %v", err)
	}
	m := mustImport(t, vidurFormat(), Options{Device: "a100_sxm"}, inMemory("a.csv", text),
		inMemory("b.csv", strings.ReplaceAll(vidurHead, "all_reduce", "send_recv")+"0,0.016,0.064,0.03,0.024,0.02,0,2,2048,send_recv,1,8\n"))
	want := []string{
		`2 a100_sxm/vidur over nvlink on 2 nodes: all_reduce {"group":2,"bytes":2048} [4.3e-05]`,
		`16 a100_sxm/vidur over nvlink on 2 nodes: all_reduce {"group":16,"bytes":26624} [4.4e-05]`,
		`2 a100_sxm/vidur-oneway over nvlink on 2 nodes: send_recv {"group":2,"bytes":2048} [2.4e-05]`,
	}
	if got := shapesOf(m); !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	reasons := []string{"1 another rank's view of a collective that rank 0 has too", "1 the table has no median of the row's collective", "1 the time is no positive number"}
	if got := m.report.reasons(); !slices.Equal(got, reasons) {
		t.Errorf("%q\nwant %q", got, reasons)
	}
	if len(m.report.Notes) != 3 || !strings.Contains(m.report.Notes[1], "several nodes") || m.report.Notes[2] != oneWayNote {
		t.Errorf("notes %q", m.report.Notes)
	}
	m = mustImport(t, vidurFormat(), Options{Device: "a100_sxm", Stack: "torch-2.1", Link: "pcie", DType: op.F16}, inMemory("a.csv", text))
	if got := shapesOf(m)[0]; got != `2 a100_sxm/torch-2.1 over pcie on 2 nodes: all_reduce {"group":2,"bytes":2048,"dtype":"f16"} [4.3e-05]` {
		t.Error(got)
	}
}

// A row whose numbers cannot be of the same calls, or of the same node, is flagged and left out.
func TestVidurRowsThatContradictThemselves(t *testing.T) {
	for row, want := range map[string]string{
		"0,0.021,0.025,0.023,0.021,0.001,0,4,8192,all_reduce,4,8\n": "",
		"0,,nan,0.023,0.030,0.001,0,4,8192,all_reduce,4,8\n":        "",
		"0,0.021,0.025,0.023,0.030,0.001,0,4,8192,all_reduce,4,8\n": `time_stats.all_reduce.median "0.030" is more than time_stats.all_reduce.max "0.025": `,
		"0,0.021,0.025,0.013,0.023,0.001,0,4,8192,all_reduce,4,8\n": `time_stats.all_reduce.min "0.021" is more than time_stats.all_reduce.mean "0.013": `,
		"0,0.021,0.025,0.023,0.023,0.001,0,8,4096,all_reduce,8,4\n": "devices_per_node is 8, max_devices_per_node 4: ",
	} {
		m, err := importInto(vidurFormat(), Options{Device: "a100_sxm"}, inMemory("a.csv", vidurHead+row))
		switch {
		case want == "" && (err != nil || len(m.report.Flags) > 0):
			t.Errorf("%s: %v, %+v", row, err, m.report)
		case want != "" && (!errors.Is(err, ErrNothing) || len(m.report.Flags) != 1 || !strings.HasPrefix(m.report.Flags[0], "a.csv:2: "+want) || m.report.Dropped[0].Reason != contradictoryRow):
			t.Errorf("%s: %v, %+v\nwant %s", row, err, m.report, want)
		}
	}
	m := mustImport(t, vidurFormat(), Options{Device: "a100_sxm"}, inMemory("mlp.csv", mlpTable("1,1,9,10.5,12,11,9,30,9,20,1,1,64,8,8192,28672,32000,True,4096,1")))
	if len(m.points) != 3 || !slices.Equal(m.report.reasons(), []string{"1 " + contradictoryRow}) {
		t.Errorf("a layer's time below its least: %d points, %q", len(m.points), m.report.reasons())
	}
}

// An all_gather's size is what each rank sends, a reduce_scatter's what each
// receives; the ops mean all ranks together.
func TestVidurNetworkOfParts(t *testing.T) {
	of := func(collective, size string) Source {
		return inMemory(collective+".csv", strings.ReplaceAll(vidurHead, "all_reduce", collective)+"0,0.9,1,0.95,0.94,0.01,0,8,"+size+","+collective+",8,8\n")
	}
	m := mustImport(t, vidurFormat(), Options{Device: "a100_sxm"}, of("all_gather", "4194304"), of("reduce_scatter", "4194304"), of("all_reduce", "4194304"))
	want := []string{
		`8 a100_sxm/vidur over nvlink: all_gather {"group":8,"bytes":33554432} [0.00094]`,
		`8 a100_sxm/vidur over nvlink: reduce_scatter {"group":8,"bytes":33554432} [0.00094]`,
		`8 a100_sxm/vidur over nvlink: all_reduce {"group":8,"bytes":4194304} [0.00094]`,
	}
	if got := shapesOf(m); !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if m, err := importInto(vidurFormat(), Options{Device: "a100_sxm"}, of("all_gather", "9223372036854775807")); err == nil || !slices.Equal(m.report.reasons(), []string{"1 the size or the number of ranks is out of range"}) {
		t.Errorf("%v, %v", m.report, err)
	}
}

func mlpTable(rows ...string) string {
	ops := []string{"emb", "attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj", "add"}
	head := ""
	for _, o := range ops {
		head += "time_stats." + o + ".min,time_stats." + o + ".median,"
	}
	return head + "n_head,n_kv_head,n_embd,n_expanded_embd,vocab_size,use_gated_mlp,num_tokens,num_tensor_parallel_workers\n" + strings.Join(rows, "\n") + "\n"
}

// The shapes of Llama-2-70B's layers: 8,192 wide, 64 heads over 8 K/V heads,
// 28,672 inside a gated MLP.
func TestVidurLayers(t *testing.T) {
	times := "1,1,9,10.5,9,11,9,30,9,20,1,1,"
	m := mustImport(t, vidurFormat(), Options{Device: "a100_sxm"}, inMemory("mlp.csv", mlpTable(
		times+"64,8,8192,28672,32000,True,4096,1", times+"64,8,8192,28672,32000,True,4096,8", times+"71,1,4544,18176,65024,False,4096,1",
		times+"64,8,8192,28672,32000,True,4096,16", times+"64,8,8192,28672,32000,perhaps,4096,1", "1,1,9,,9,11,9,30,9,20,1,1,64,8,8192,28672,32000,True,4096,1")))
	var got []string
	for _, p := range m.points {
		g := p.Shape.(op.GEMM)
		got = append(got, fmt.Sprintf("%s %d %d %d %s %g", p.On, g.M, g.N, g.K, g.DType, p.Times[0]))
	}
	want := []string{
		"a100_sxm/vidur 4096 10240 8192 f16 0.0105", "a100_sxm/vidur 4096 8192 8192 f16 0.011", "a100_sxm/vidur 4096 57344 8192 f16 0.03", "a100_sxm/vidur 4096 8192 28672 f16 0.02",
		"a100_sxm/vidur 4096 1280 8192 f16 0.0105", "a100_sxm/vidur 4096 8192 1024 f16 0.011", "a100_sxm/vidur 4096 7168 8192 f16 0.03", "a100_sxm/vidur 4096 8192 3584 f16 0.02",
		"a100_sxm/vidur 4096 4672 4544 f16 0.0105", "a100_sxm/vidur 4096 4544 4544 f16 0.011", "a100_sxm/vidur 4096 18176 4544 f16 0.03", "a100_sxm/vidur 4096 4544 18176 f16 0.02",
		"a100_sxm/vidur 4096 8192 8192 f16 0.011", "a100_sxm/vidur 4096 57344 8192 f16 0.03", "a100_sxm/vidur 4096 8192 28672 f16 0.02",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	reasons := []string{"1 the heads or widths do not divide among the ranks", "1 use_gated_mlp is neither 1 nor 0", "1 the time is no positive number"}
	if got := m.report.reasons(); !slices.Equal(got, reasons) {
		t.Errorf("%q\nwant %q", got, reasons)
	}
}

func TestVidurRefusals(t *testing.T) {
	for text, want := range map[string]string{
		",time_stats.all_reduce.median,rank,num_workers,n_embd,num_tokens\n0,0.002,0,2,4096,8\n": "x:2: a layout of Vidur's first versions",
		"gpu,dtype,m,n,k,latency_us\n": `x:1: the columns "gpu,dtype,m,n,k,latency_us" are of no table that is known`,
	} {
		if _, err := importInto(vidurFormat(), Options{Device: "a100_sxm"}, inMemory("x", text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	// The plain importer knows whose table it is.
	if _, err := importInto(tableFormat(), Options{}, inMemory("x", vidurHead)); err == nil || !strings.Contains(err.Error(), "--from vidur") {
		t.Error(err)
	}
}

func FuzzVidur(f *testing.F) {
	f.Add(vidurHead + "0,0.031,0.077,0.05,0.043,0.01,0,2,2048,all_reduce,1,8\n")
	f.Add(mlpTable("1,1,9,10.5,9,11,9,30,9,20,1,1,64,8,8192,28672,32000,True,4096,8"))
	f.Fuzz(func(t *testing.T, text string) { importAnything(t, vidurFormat(), text) })
}

// A table of Vidur that is not read is not answered with the option that was given.
func TestVidurOtherTables(t *testing.T) {
	for name, head := range map[string]string{
		"attention.csv":  "time_stats.attn_prefill.min,time_stats.attn_prefill.median,n_embd,n_q_head,n_kv_head,block_size,num_tensor_parallel_workers,max_model_len,batch_size,prefill_chunk_size,kv_cache_size,is_prefill,attention_backend\n",
		"all_gather.csv": ",time_stats.all_reduce.min,time_stats.all_reduce.median,rank,num_workers,vocab_size,num_tokens\n",
	} {
		for _, f := range []Format{vidurFormat(), tableFormat()} {
			_, err := importInto(f, Options{Device: "a100_sxm"}, inMemory(name, head))
			if want := name + ": a table of Vidur, but none that is read: those are network/*/all_reduce.csv"; err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%s: %v", f.Name, err)
			}
		}
	}
}
