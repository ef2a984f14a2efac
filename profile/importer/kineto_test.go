package importer

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// memoryFile is a source that lies in memory.
type memoryFile struct{ *bytes.Reader }

// Close implements File.
func (memoryFile) Close() error { return nil }

func textSource(name, text string) Source {
	return Source{Name: name, Size: int64(len(text)), Open: func() (File, error) {
		return memoryFile{bytes.NewReader([]byte(text))}, nil
	}}
}

// onH100 wraps events in a trace of one H100.
func onH100(events ...string) string {
	return `{"deviceProperties":[{"id":0,"name":"NVIDIA H100 80GB HBM3","numSms":132}],"cuda_runtime_version":12040,
"traceEvents":[` + strings.Join(events, ",\n") + `]}`
}

// cpuOp is an op with its inputs: dims of tensors, values of scalars.
func cpuOp(id int, name string, dims [][]int64, types []string, values []string) string {
	args := map[string]any{"External id": id}
	if dims != nil {
		args["Input Dims"] = dims
	}
	if types != nil {
		args["Input type"] = types
	}
	if values != nil {
		args["Concrete Inputs"] = values
	}
	return event("cpu_op", name, 10, 10, 100*id, 50, args)
}

func gpuKernel(id int, name string, us float64) string {
	return event("kernel", name, 0, 7, 100*id+20, us, map[string]any{"External id": id, "correlation": id + 5000, "device": 0})
}

func event(cat, name string, pid, tid, ts int, dur float64, args map[string]any) string {
	data, err := json.Marshal(map[string]any{"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args})
	if err != nil {
		panic(err)
	}
	return string(data)
}

// flashForward is aten::_flash_attention_forward of q and k, causal or not.
func flashForward(id int, q, k []int64, causal string) string {
	most := func(d []int64) string { return fmt.Sprint(at(d, 1)) }
	return cpuOp(id, "aten::_flash_attention_forward", [][]int64{q, k, k, nil, nil},
		[]string{"c10::BFloat16", "c10::BFloat16", "c10::BFloat16"},
		[]string{"", "", "", "", "", most(q), most(k), "0.", causal, "False", "0.125", "", "", "", ""})
}

const fa2Kernel = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128>>(Flash_fwd_params)"

// imported is what an import of traces gives: points as text, and reasons.
type imported struct {
	points []string
	report *Report
	err    error
}

func importText(t *testing.T, o Options, texts ...string) imported {
	t.Helper()
	var sources []Source
	for i, text := range texts {
		sources = append(sources, textSource(fmt.Sprintf("rank%d.json", i), text))
	}
	report, points, err := importTraces(t, o, sources...)
	got := imported{report: report, err: err}
	for _, p := range points {
		got.points = append(got.points, fmt.Sprintf("%s %s %s %.4g", p.On, p.Op, p.Raw, p.Times[0]))
	}
	return got
}

func (g imported) reasons() []string {
	if g.report == nil {
		return nil
	}
	var all []string
	for _, d := range g.report.Dropped {
		all = append(all, d.Reason)
	}
	return all
}

const attentionPoint = `h100_sxm/torch-cuda12.4 attn_fwd {"mask":"diag","q_len":559,"kv_len":559,"q_heads":16,"kv_heads":4,"head_dim":64,"dtype":"bf16","kernel":"fa2","batch":2} 0.0001138`

// A kernel that the file holds twice would count twice in its op's time. Two equal kernels
// of a call, one after the other, are no such thing.
func TestKinetoKernelsTwice(t *testing.T) {
	flash := func(id int, length int64) string {
		return flashForward(id, []int64{2, length, 16, 64}, []int64{2, length, 4, 64}, "True")
	}
	later := event("kernel", fa2Kernel, 0, 7, 940, 30, map[string]any{"External id": 9, "correlation": 5010, "device": 0})
	once := []string{flash(7, 559), flash(9, 560), gpuKernel(7, fa2Kernel, 113.8), gpuKernel(9, fa2Kernel, 30), later}
	got := importText(t, Options{}, onH100(once...))
	if len(got.points) != 2 || len(got.report.Flags) != 0 {
		t.Errorf("each kernel once: %q, %+v", got.points, got.report)
	}
	got = importText(t, Options{}, onH100(append(once, gpuKernel(7, fa2Kernel, 113.8))...))
	want := "rank0.json: event 6: 1 kernel in the file twice, "
	if len(got.points) != 1 || !slices.Equal(got.reasons(), []string{kernelTwice}) || len(got.report.Flags) != 1 || !strings.HasPrefix(got.report.Flags[0], want) {
		t.Errorf("one twice: %q, %+v", got.points, got.report)
	}
}

// TestKinetoContainers: the same attention in every way that traces are
// written, and in files that are broken behind it.
func TestKinetoContainers(t *testing.T) {
	flash := flashForward(7, []int64{2, 559, 16, 64}, []int64{2, 559, 4, 64}, "True")
	kernel := gpuKernel(7, fa2Kernel, 113.775)
	plain := onH100(flash, kernel)
	head, events, _ := strings.Cut(plain, `"traceEvents":`)
	events = strings.TrimSuffix(events, "}")
	var idle []string
	for i := range 3000 {
		idle = append(idle, cpuOp(100+i*i, "aten::empty", nil, nil, nil))
	}
	long := gzipped(onH100(append([]string{flash, kernel}, idle...)...))
	cases := []struct{ name, text, flag string }{
		{"plain", plain, ""},
		{"events first", `{"traceEvents":` + events + "," + strings.TrimPrefix(strings.TrimSuffix(strings.TrimSpace(head), ","), "{") + "}", ""},
		{"kernel first", onH100(kernel, flash), ""},
		{"byte order of keys", strings.ReplaceAll(plain, `"ph":"X"`, `"zz":{"a":[1,{"b":null}]},"ph":"X"`), ""},
		{"ids as text", strings.ReplaceAll(plain, `"External id":7`, `"External id":"7"`), ""},
		{"old keys", strings.ReplaceAll(strings.ReplaceAll(plain, `"External id"`, `"external id"`), `"cpu_op"`, `"Operator"`), ""},
		{"nan and infinity", strings.ReplaceAll(plain, `"device":0`, `"device":0,"est. achieved occupancy %":NaN,"warps per SM":-Infinity,"blocks per SM":inf`), ""},
		{"raw control characters", strings.ReplaceAll(plain, `"correlation"`, "\"Call\x01 stack\": \"a\tb\nC:\\Users\\x \xff\",\"correlation\""), ""},
		{"gzip", gzipped(plain), ""},
		{"byte order mark", "\xef\xbb\xbf" + strings.ReplaceAll(plain, ",", "\r\n,"), ""},
		{"zero bytes behind", plain[:len(plain)-2] + strings.Repeat("\x00", 4096), "breaks off"},
		{"two gzip members", gzipped(plain[:200]) + gzipped(plain[200:]), ""},
		{"torn in the last event", plain[:len(plain)-2] + `,{"ph":"X","cat":"ker`, "breaks off"},
		{"no closing bracket", plain[:len(plain)-2], "breaks off"},
		{"torn gzip", long[:len(long)-40], "breaks off"},
		{"garbage behind", plain[:len(plain)-2] + `, }}}`, "breaks off"},
		{"blanks behind", plain + " \r\n\n", ""},
		{"another behind", plain + "\n" + plain, "more follows behind the end of the trace, which has 2 events: it was not read; import traces"},
		{"another behind, gzipped", gzipped(plain) + gzipped(plain), "more follows behind the end"},
		{"a bracket behind", plain + "]", "more follows behind the end"},
		{"a gzip whose end is cut off", gzipped(plain)[:len(gzipped(plain))-4], "breaks off"},
		{"duplicate keys", strings.ReplaceAll(plain, `"ph":"X"`, `"ph":"X","ph":"X"`), ""},
	}
	for _, c := range cases {
		got := importText(t, Options{}, c.text)
		if got.err != nil || !slices.Equal(got.points, []string{attentionPoint}) {
			t.Errorf("%s: %v, %v, %v", c.name, got.err, got.points, got.reasons())
			continue
		}
		flags := strings.Join(got.report.Flags, "; ")
		if (c.flag == "") != (flags == "") || !strings.Contains(flags, c.flag) {
			t.Errorf("%s: flags %q, want %q", c.name, flags, c.flag)
		}
	}
	bare := importText(t, Options{Device: "h100_sxm", Stack: "torch-cuda12.4"}, "["+flash+","+kernel+"]")
	if !slices.Equal(bare.points, []string{attentionPoint}) {
		t.Errorf("a bare array of events: %v %v", bare.err, bare.points)
	}
}

func gzipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, text)
	z.Close()
	return b.String()
}

// Builds that describe the GPUs behind the events lose them where the file breaks off.
func TestKinetoTornBeforeItsGPUs(t *testing.T) {
	whole := `{"traceEvents":[` + flashForward(7, []int64{1, 64, 2, 64}, []int64{1, 64, 2, 64}, "False") + "," + gpuKernel(7, fa2Kernel, 10) + `,{"ph":"X"}],` +
		`"deviceProperties":[{"id":0,"name":"NVIDIA H100 80GB HBM3"}]}`
	if got := importText(t, Options{}, whole); got.err != nil || len(got.points) != 1 {
		t.Errorf("whole: %v, %v", got.err, got.points)
	}
	got := importText(t, Options{}, whole[:strings.Index(whole, `{"ph":"X"}`)+5])
	want := "names no GPU (deviceProperties): say which with --device; the file breaks off or is damaged after event 3; what came before was read"
	if got.err == nil || !strings.HasSuffix(got.err.Error(), want) {
		t.Errorf("torn: %v, want %s", got.err, want)
	}
}

// TestKinetoRefused: files of other kinds, and what is needed and not there.
func TestKinetoRefused(t *testing.T) {
	attention := flashForward(7, []int64{1, 64, 2, 64}, []int64{1, 64, 2, 64}, "False") + "," + gpuKernel(7, fa2Kernel, 10)
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "no \"traceEvents\""},
		{"other JSON", `{"a":1}`, "no \"traceEvents\""},
		{"text", "# nThread 1 nGpus 8", "no \"traceEvents\""},
		{"events are no list", `{"traceEvents":7}`, "no \"traceEvents\""},
		{"bad gzip", "\x1f\x8b nothing", "gzip"},
		{"no GPU", `{"traceEvents":[` + attention + `]}`, "--device"},
		{"unknown GPU", `{"deviceProperties":[{"id":0,"name":"Voodoo 2"}],"traceEvents":[` + attention + `]}`, "--device"},
		{"no events", onH100(), "no row could be used"},
	} {
		if got := importText(t, Options{}, c.text); got.err == nil || !strings.Contains(got.err.Error(), c.want) || !strings.Contains(got.err.Error(), "rank0.json") {
			t.Errorf("%s: %v, want %q with the file's name", c.name, got.err, c.want)
		}
	}
	broken := Source{Name: "x", Open: func() (File, error) { return nil, errors.New("no such disk") }}
	if _, _, err := importTraces(t, Options{}, broken); err == nil || !strings.Contains(err.Error(), "no such disk") {
		t.Errorf("a file that cannot be opened: %v", err)
	}
}

// TestKinetoReasons: one attention each that is no point, and the reason.
func TestKinetoReasons(t *testing.T) {
	q := []int64{1, 256, 8, 64}
	flash := flashForward(7, q, q, "True")
	kernel := gpuKernel(7, fa2Kernel, 10)
	replace := func(old, with string) []string { return []string{strings.Replace(flash, old, with, 1), kernel} }
	for _, c := range []struct {
		name   string
		events []string
		want   string
	}{
		{"no shapes", []string{cpuOp(7, "aten::_flash_attention_forward", nil, nil, nil), kernel}, "record_shapes"},
		{"no values", []string{cpuOp(7, "aten::_flash_attention_forward", [][]int64{q, q, q}, []string{"float", "float", "float"}, nil), kernel}, "causal is not in the trace"},
		{"causal rectangle", []string{flashForward(7, q, []int64{1, 512, 8, 64}, "True"), kernel}, "another number of queries"},
		{"dropout", replace(`"0."`, `"0.1"`), "dropout"},
		{"mixed types", replace(`"c10::BFloat16"`, `"float"`), "element types"},
		{"int tensors", []string{strings.ReplaceAll(flash, "c10::BFloat16", "long int"), kernel}, "element types"},
		{"other lengths said", replace(`"256"`, `"255"`), "contradict"},
		{"heads no multiple", []string{flashForward(7, q, []int64{1, 256, 3, 64}, "True"), kernel}, "multiple"},
		{"zero dimension", []string{flashForward(7, []int64{1, 0, 8, 64}, q, "True"), kernel}, "out of range"},
		{"another width of values", []string{strings.Replace(flash, `[1,256,8,64],null`, `[1,256,8,32],null`, 1), kernel}, "another width"},
		{"another batch of keys", []string{flashForward(7, q, []int64{2, 256, 8, 64}, "True"), kernel}, "do not fit together"},
		{"a bias", []string{cpuOp(7, "aten::_scaled_dot_product_efficient_attention", [][]int64{q, q, q, {1, 8, 256, 256}}, []string{"float", "float", "float"}, strings.Split(",,,,False,0.,True", ",")), kernel}, "bias"},
		{"a soft cap", []string{cpuOp(7, "flash_attn::_flash_attn_forward", [][]int64{q, q, q}, []string{"float", "float", "float"}, strings.Split(",,,0.,0.1,True,-1,-1,30.", ",")), kernel}, "soft cap"},
		{"a window to both sides", []string{cpuOp(7, "flash_attn::_flash_attn_forward", [][]int64{q, q, q}, []string{"float", "float", "float"}, strings.Split(",,,0.,0.1,False,16,16,0.", ",")), kernel}, "window without"},
		{"a window of what", []string{cpuOp(7, "flash_attn::_flash_attn_forward", [][]int64{q, q, q}, []string{"float", "float", "float"}, strings.Split(",,,0.,0.1,False,x,16,0.", ",")), kernel}, "not in the trace"},
		{"a window in a tuple", []string{cpuOp(7, "FlashAttnFunc", [][]int64{q, q, q}, []string{"float", "float", "float"}, strings.Split(",,,0.,0.1,True,,0.,,False,False", ",")), kernel}, "not in the trace"},
		{"slopes where later versions have a soft cap", []string{cpuOp(7, "FlashAttnFunc", [][]int64{q, q, q, nil, nil, nil, nil, {8}}, []string{"float", "float", "float"}, []string{"", "", "", "0.", "0.1", "True", "[-1, -1]", "", "False", "False"}), kernel}, "slopes"},
		{"a mask of what", []string{cpuOp(7, "aten::_efficient_attention_forward", [][]int64{q, q, q}, []string{"float", "float", "float"}, strings.Split(",,,,,,,,0.,7", ",")), kernel}, "causal is not in the trace"},
		{"not four dims", []string{flashForward(7, []int64{256, 8, 64}, []int64{256, 8, 64}, "True"), kernel}, "no batches of heads"},
		{"packed", replace(`null,null]`, `[5],[5]]`), "packed documents"},
		{"negative duration", []string{flash, gpuKernel(7, fa2Kernel, -3)}, "positive duration"},
		{"nan duration", []string{flash, strings.Replace(kernel, `"dur":10`, `"dur":NaN`, 1)}, "positive duration"},
		{"no duration", []string{flash, strings.Replace(kernel, `"dur":10,`, "", 1)}, "positive duration"},
		{"two devices", []string{flash, kernel, strings.Replace(kernel, `"device":0`, `"device":1`, 1)}, "more than one device"},
		{"no op", []string{gpuKernel(9, fa2Kernel, 10)}, "arguments are not known"},
		{"no id", []string{strings.Replace(kernel, `"External id":7,`, "", 1)}, "not in the trace"},
		{"same id twice", []string{flash, flashForward(7, q, q, "False"), kernel}, "two ops"},
		{"faster than the peak", []string{flashForward(7, []int64{64, 8192, 8, 64}, []int64{64, 8192, 8, 64}, "True"), kernel}, tooFast},
		{"unrelated kernel alone", []string{flash, gpuKernel(8, "triton_poi_fused__scaled_dot_product_flash_attention_0", 3)}, ""},
	} {
		got := importText(t, Options{}, onH100(c.events...))
		if reasons := strings.Join(got.reasons(), "; "); c.want != "" && (len(got.points) > 0 || !strings.Contains(reasons, c.want)) {
			t.Errorf("%s: %v, reasons %q, want %q; %v", c.name, got.points, reasons, c.want, got.err)
		}
		if c.name == "unrelated kernel alone" && (got.report.Rows != 0 || !errors.Is(got.err, ErrNothing)) {
			t.Errorf("%s: %d rows, %v", c.name, got.report.Rows, got.err)
		}
	}
}

// TestKinetoIdle: a trace without a single row says what it lacks.
func TestKinetoIdle(t *testing.T) {
	q := []int64{1, 256, 8, 64}
	for _, c := range []struct{ text, want string }{
		{onH100(flashForward(7, q, q, "True")), "rank0.json: holds no kernels: record the trace with ProfilerActivity.CUDA"},
		{onH100(flashForward(7, q, q, "True"), gpuKernel(8, "elementwise", 3)), "rank0.json: holds 1 kernel, none of attention"},
		{onH100(flashForward(7, q, q, "True"), `{"ph":"X"`), ""}, // cut off before its kernels
	} {
		got := importText(t, Options{}, c.text)
		if c.want == "" {
			if len(got.report.Notes) > 0 {
				t.Errorf("cut off: %q", got.report.Notes)
			}
			continue
		}
		if !errors.Is(got.err, ErrNothing) || len(got.report.Notes) == 0 || !strings.HasPrefix(got.report.Notes[0], c.want) {
			t.Errorf("%v, %+v, want %s", got.err, got.report, c.want)
		}
	}
}

// attentionCase is an op with its arguments and the kernel it launches.
type attentionCase struct {
	name, kernel string
	dims         [][]int64
	values       string // by comma, with ; for a comma inside
	want         op.Shape
}

func attentionCases() []attentionCase {
	bshd, bhsd, gqa := []int64{2, 384, 8, 128}, []int64{2, 8, 384, 128}, []int64{2, 384, 2, 128}
	thd, cu := []int64{768, 8, 128}, []int64{3}
	lse := []int64{2, 8, 384}
	diag := op.Attention{Mask: op.Diag, QLen: 384, KVLen: 384, QHeads: 8, KVHeads: 8, HeadDim: 128, DType: op.F16, Batch: 2}
	with := func(kernel string, change func(*op.Attention)) op.Attention {
		a := diag
		a.Kernel = kernel
		if change != nil {
			change(&a)
		}
		return a
	}
	full := func(a *op.Attention) { a.Mask = op.Full }
	none := []int64(nil)
	return []attentionCase{
		{"aten::_scaled_dot_product_flash_attention", "attn_fwd", [][]int64{bhsd, bhsd, bhsd}, ",,,0.,True,False,0.125", op.AttnFwd{Attention: with("aotriton", nil)}},
		{"aten::_scaled_dot_product_cudnn_attention", "cudnn_generated_fort_native_sdpa_sm90_flash_fprop", [][]int64{bhsd, bhsd, bhsd}, ",,,,False,0.,True,False,", op.AttnFwd{Attention: with("cudnn", nil)}},
		{"aten::_scaled_dot_product_cudnn_attention", "unheard_of", [][]int64{bhsd, bhsd, bhsd}, ",,,0.,False,False,", op.AttnFwd{Attention: with("cudnn", full)}},
		{"aten::_scaled_dot_product_efficient_attention", "fmha_cutlassF_f16_aligned_64x64_rf_sm80", [][]int64{bhsd, bhsd, bhsd}, ",,,,True,0.,True,", op.AttnFwd{Attention: with("efficient", nil)}},
		{"aten::_efficient_attention_forward", "fmha_cutlassF_f16_aligned_64x64_rf_sm80", [][]int64{bshd, bshd, bshd}, ",,,,,,,,0.,1,True,,,", op.AttnFwd{Attention: with("efficient", nil)}},
		{"aten::_efficient_attention_forward", "fmha_cutlassF", [][]int64{bshd, bshd, bshd}, ",,,,,,,,0.,0,True,,,", op.AttnFwd{Attention: with("efficient", full)}},
		{"aten::_flash_attention_forward", "flash_fwd_splitkv_kernel", [][]int64{thd, thd, thd, cu, cu}, ",,,,,384,384,0.,True,False,,,,,", op.AttnFwd{Attention: with("fa2_varlen", nil)}},
		{"flash_attn::_flash_attn_forward", "void flash_fwd_kernel<>", [][]int64{bshd, gqa, gqa}, ",,,0.,0.08,True,127,0,0.,,False", op.AttnFwd{Attention: with("flash_attn_fa2", func(a *op.Attention) { a.KVHeads, a.Window = 2, 128 })}},
		{"FlashAttnFunc", "flash::compute_attn_ws", [][]int64{bshd, bshd, bshd}, ",,,0.,0.08,False,[-1; -1],0.,,False", op.AttnFwd{Attention: with("flash_attn_fa3", full)}},
		{"flash_attn::_flash_attn_varlen_forward", "flash_fwd_kernel", [][]int64{{900, 8, 128}, {900, 8, 128}, {900, 8, 128}, {2}, {2}}, ",,,,,900,900,0.,0.08,True,-1,-1,0.,,False,,,,", op.AttnFwd{Attention: with("flash_attn_fa2_varlen", func(a *op.Attention) { a.Batch, a.QLen, a.KVLen = 0, 900, 900 })}},
		{"aten::_scaled_dot_product_fused_attention_overrideable", "micro_sdpa", [][]int64{bhsd, bhsd, bhsd}, ",,,,0.,True,False,", op.AttnFwd{Attention: with("sdpa", nil)}},
		{"aten::_cudnn_attention_forward", "cudnn_sdpa_fprop", [][]int64{bhsd, bhsd, bhsd}, ",,,,,,384,384,True,0.,True,False,", op.AttnFwd{Attention: with("cudnn", nil)}},
		{"aiter::_flash_attn_forward", "_ZN7ck_tile6kentryI_FmhaFwdKernel", [][]int64{bshd, bshd, bshd}, ",,,0.,0.08,True,-1,-1,,,True,False", op.AttnFwd{Attention: with("aiter_ck", nil)}},
		{"aiter::mha_bwd", "aiter::fmha_bwd_hd128", [][]int64{bshd, bshd, bshd, bshd, bshd, lse}, ",,,,,,0.,0.08,False,-1,-1", op.AttnBwd{Attention: with("aiter", full)}},
		{"flash_attn::_flash_attn_varlen_backward", "FlashAttnBwdSm90", [][]int64{thd, thd, thd, thd, thd, lse, thd, thd, thd, cu, cu}, ",,,,,,,,,,,384,384,0.,0.08,True,-1,-1,0.,,False", op.AttnBwd{Attention: with("flash_attn_fa3_varlen", nil)}},
		{"aiter::mha_fwd", "_ZN5aiter34fmha_fwd_hd128_bf16_causal_groupE", [][]int64{bshd, bshd, bshd}, ",,,0.,0.08,True,-1,0,True", op.AttnFwd{Attention: with("aiter", nil)}},
		{"aten::_flash_attention_backward", "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", [][]int64{bshd, bshd, gqa, gqa, bshd, lse, none, none}, ",,,,,,,,384,384,0.,True,,,0.125,,", op.AttnBwd{Attention: with("fa2", func(a *op.Attention) { a.KVHeads = 2 })}},
		{"aten::_scaled_dot_product_flash_attention_backward", "bwd_kernel_dk_dv", [][]int64{bhsd, bhsd, bhsd, bhsd, bhsd, lse}, ",,,,,,,,384,384,0.,False,,,", op.AttnBwd{Attention: with("aotriton", full)}},
		{"aten::_scaled_dot_product_cudnn_attention_backward", "cudnn_sdpa_bprop", [][]int64{bhsd, bhsd, bhsd, bhsd, bhsd, lse}, ",,,,,,,,,,,384,384,0.,True,", op.AttnBwd{Attention: with("cudnn", nil)}},
		{"aten::_scaled_dot_product_efficient_attention_backward", "fmha_cutlassB", [][]int64{bhsd, bhsd, bhsd, bhsd, none, bhsd, lse}, ",,,,,,,,,0.,[True; True; True; False],True,", op.AttnBwd{Attention: with("efficient", nil)}},
		{"aten::_efficient_attention_backward", "fmha_cutlassB", [][]int64{bshd, bshd, bshd, bshd, none, bshd}, ",,,,,,,,384,384,,0.,,,1,False,,,,", op.AttnBwd{Attention: with("efficient", nil)}},
		{"flash_attn::_flash_attn_backward", "flash_bwd_kernel", [][]int64{bshd, bshd, bshd, bshd, bshd, lse, bshd, bshd, bshd}, ",,,,,,,,,0.,0.08,True,-1,-1,0.,,False", op.AttnBwd{Attention: with("flash_attn_fa2", nil)}},
	}
}

// TestKinetoOps: each op with known arguments gives its shape.
func TestKinetoOps(t *testing.T) {
	for _, c := range attentionCases() {
		values := strings.Split(c.values, ",")
		for i := range values {
			values[i] = strings.ReplaceAll(values[i], ";", ",")
		}
		types := make([]string, len(c.dims))
		for i, d := range c.dims {
			if len(d) > 2 {
				types[i] = "c10::Half"
			}
		}
		text := onH100(cpuOp(3, c.name, c.dims, types, values), gpuKernel(3, c.kernel, 400))
		tr, err := readTrace(textSource("x", text))
		if err != nil || len(tr.ops) != 1 {
			t.Fatal(c.name, err)
		}
		got, reason := tr.ops[0].call.shape(tr.ops[0].kernel)
		if reason != "" || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v %s\nwant %+v", c.name, got, reason, c.want)
			continue
		}
		if err := got.Validate(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestKinetoSums: the kernels of one op are one call; the op around it has none.
func TestKinetoSums(t *testing.T) {
	q := []int64{1, 512, 8, 64}
	outer := event("cpu_op", "aten::_scaled_dot_product_flash_attention", 10, 10, 690, 70, map[string]any{"External id": 6, "Input Dims": [][]int64{q, q, q}})
	got := importText(t, Options{}, onH100(outer, flashForward(7, q, q, "False"),
		gpuKernel(7, "flash_fwd_splitkv_kernel", 30), gpuKernel(7, "flash_fwd_splitkv_combine_kernel", 5), gpuKernel(6, "some_copy", 4)))
	want := `h100_sxm/torch-cuda12.4 attn_fwd {"mask":"full","q_len":512,"kv_len":512,"q_heads":8,"kv_heads":8,"head_dim":64,"dtype":"bf16","kernel":"fa2"} 3.5e-05`
	if !slices.Equal(got.points, []string{want}) || len(got.report.Dropped) != 1 || got.report.Rows != 2 {
		t.Errorf("%v %+v %v", got.points, got.report, got.err)
	}
	cut := importText(t, Options{}, onH100(flashForward(1, q, q, "False"), flashForward(2, q, q, "False"), flashForward(3, q, q, "False"),
		gpuKernel(1, "flash_fwd_splitkv_kernel", 30), gpuKernel(1, "combine", 5), gpuKernel(2, "flash_fwd_splitkv_kernel", 30), gpuKernel(2, "combine", 5),
		gpuKernel(3, "flash_fwd_splitkv_kernel", 30)))
	if len(cut.points) != 2 || !strings.Contains(strings.Join(cut.reasons(), ""), "ends inside") {
		t.Errorf("a call without its last kernel: %v %v", cut.points, cut.reasons())
	}
}

// TestKinetoWays: a kernel finds its op by its id, by its launch's id, or, where
// ids are correlations, by the op around its launch; kernels of ops inside are
// not the op's.
func TestKinetoWays(t *testing.T) {
	q := []int64{1, 512, 8, 64}
	flash := flashForward(7, q, q, "False") // from 700 to 750
	launch := func(ts, correlation int, args map[string]any) string {
		args["correlation"] = correlation
		return event("cuda_runtime", "cudaLaunchKernel", 10, 10, ts, 5, args)
	}
	kernel := func(correlation int, name string, us float64, args map[string]any) string {
		args["correlation"] = correlation
		return event("kernel", name, 0, 7, 2000, us, args)
	}
	none := map[string]any{}
	id := func(n int) map[string]any { return map[string]any{"External id": n} }
	inner := event("cpu_op", "aten::fill_", 10, 10, 720, 8, id(8))
	for _, c := range []struct {
		name   string
		events []string
		us     float64
	}{
		{"launch names the op", []string{kernel(41, fa2Kernel, 20, none), launch(705, 41, id(7)), flash}, 20},
		{"driver call names the op", []string{flash, strings.Replace(launch(705, 41, id(7)), "cuda_runtime", "cuda_driver", 1), kernel(41, fa2Kernel, 21, none)}, 21},
		{"by time", []string{flash, launch(705, 41, none), kernel(41, fa2Kernel, 22, none)}, 22},
		{"ids are correlations", []string{flash, launch(705, 41, id(41)), kernel(41, fa2Kernel, 23, id(41))}, 23},
		{"an id that matches by accident", []string{flash, flashForward(41, q, q, "False"), launch(705, 41, id(41)), kernel(41, fa2Kernel, 24, id(41))}, 24},
		{"the op inside has its own", []string{flash, inner, launch(705, 41, id(41)), launch(722, 42, id(42)), kernel(41, fa2Kernel, 25, id(41)), kernel(42, "fill", 9, id(42))}, 25},
		{"another thread", []string{flash, strings.Replace(launch(705, 41, id(41)), `"tid":10`, `"tid":11`, 1), kernel(41, fa2Kernel, 26, id(41))}, 0},
		{"before the op", []string{flash, launch(650, 41, none), kernel(41, fa2Kernel, 27, none)}, 0},
	} {
		got := importText(t, Options{}, onH100(c.events...))
		var us []string
		if c.us > 0 {
			us = []string{fmt.Sprintf(`h100_sxm/torch-cuda12.4 attn_fwd {"mask":"full","q_len":512,"kv_len":512,"q_heads":8,"kv_heads":8,"head_dim":64,"dtype":"bf16","kernel":"fa2"} %.4g`, c.us*1e-6)}
		}
		if !slices.Equal(got.points, us) {
			t.Errorf("%s: %v %v, want %v", c.name, got.points, got.reasons(), us)
		}
	}
}

// TestKinetoGEMM: only the layout of a linear layer's forward is one.
func TestKinetoGEMM(t *testing.T) {
	mm := func(name string, dims, strides [][]int64, dtype, kernel string) string {
		types := make([]string, len(dims))
		for i := range types {
			types[i] = dtype
		}
		args := map[string]any{"External id": 5, "Input Dims": dims, "Input Strides": strides, "Input type": types}
		return onH100(event("cpu_op", name, 1, 1, 500, 50, args), gpuKernel(5, kernel, 30))
	}
	a, b := []int64{4096, 1024}, []int64{1024, 2048}
	want := `h100_sxm/torch-cuda12.4 gemm {"pass":"fwd","m":4096,"n":2048,"k":1024,"dtype":"bf16"} 3e-05`
	rows, columns := []int64{1024, 1}, []int64{1, 1024}
	for _, c := range []struct{ name, text, reason string }{
		{"mm", mm("aten::mm", [][]int64{a, b}, [][]int64{rows, columns}, "c10::BFloat16", "nvjet_tst"), ""},
		{"addmm", mm("aten::addmm", [][]int64{{2048}, a, b}, [][]int64{{1}, rows, columns}, "c10::BFloat16", "nvjet_tst"), ""},
		{"linear", mm("aten::linear", [][]int64{{2, 2048, 1024}, {2048, 1024}}, [][]int64{{2048 * 1024, 1024, 1}, {1024, 1}}, "c10::BFloat16", "nvjet_tst"), ""},
		{"dgrad", mm("aten::mm", [][]int64{a, b}, [][]int64{rows, {2048, 1}}, "c10::BFloat16", "nvjet_tst"), "another layout"},
		{"wgrad", mm("aten::mm", [][]int64{a, b}, [][]int64{{1, 4096}, {2048, 1}}, "c10::BFloat16", "nvjet_tst"), "another layout"},
		{"residual", mm("aten::addmm", [][]int64{{4096, 2048}, a, b}, [][]int64{{2048, 1}, rows, columns}, "c10::BFloat16", "nvjet_tst"), "whole matrix"},
		{"no strides", mm("aten::mm", [][]int64{a, b}, nil, "c10::BFloat16", "nvjet_tst"), "no Input Strides"},
		{"no fit", mm("aten::mm", [][]int64{a, a}, [][]int64{rows, columns}, "c10::BFloat16", "nvjet_tst"), "fit together"},
		{"integers", mm("aten::mm", [][]int64{a, b}, [][]int64{rows, columns}, "signed char", "k"), "element types"},
		{"tf32", mm("aten::mm", [][]int64{a, b}, [][]int64{rows, columns}, "float", "sm80_xmma_gemm_f32f32_tf32f32_f32_tn"), "TF32"},
	} {
		got := importText(t, Options{}, c.text)
		if reasons := strings.Join(got.reasons(), ""); c.reason != "" && (!strings.Contains(reasons, c.reason) || len(got.points) > 0) {
			t.Errorf("%s: %v %q, want %q", c.name, got.points, reasons, c.reason)
		} else if c.reason == "" && !slices.Equal(got.points, []string{want}) {
			t.Errorf("%s: %v %v", c.name, got.points, got.reasons())
		}
	}
}

// TestKinetoDevices: a slice of a GPU is not its model, and several models are
// told apart by id.
func TestKinetoDevices(t *testing.T) {
	q := []int64{1, 512, 8, 64}
	one := func(device string) string {
		return flashForward(7, q, q, "False") + "," + strings.Replace(gpuKernel(7, fa2Kernel, 20), `"device":0`, `"device":`+device, 1)
	}
	trace := func(devices, events string) string {
		return `{"deviceProperties":[` + devices + `],"traceEvents":[` + events + `]}`
	}
	h100, a100 := `{"id":0,"name":"NVIDIA H100 80GB HBM3","numSms":132}`, `{"id":1,"name":"NVIDIA A100-SXM4-80GB"}`
	for _, c := range []struct {
		name, text string
		o          Options
		on, reason string
	}{
		{"by id", trace(h100+","+a100, one("1")), Options{}, "a100_sxm/torch", ""},
		{"one model, another id", trace(h100, one("6")), Options{}, "h100_sxm/torch", ""},
		{"several models, another id", trace(h100+","+a100, one("6")), Options{}, "", "does not name"},
		{"a slice", trace(strings.Replace(h100, "132", "16", 1), one("0")), Options{}, "", "multiprocessors"},
		{"given", trace(`{"id":0,"name":"NVIDIA Graphics Device"}`, one("0")), Options{Device: "b200_sxm"}, "b200_sxm/torch", ""},
		{"given and named", trace(h100, one("0")), Options{Device: "b200_sxm", Stack: "torch-2.9"}, "h100_sxm/torch-2.9", ""},
	} {
		got := importText(t, c.o, c.text)
		if c.reason != "" && !strings.Contains(strings.Join(got.reasons(), ""), c.reason) {
			t.Errorf("%s: %v %v", c.name, got.points, got.reasons())
		}
		if c.on != "" && (len(got.points) != 1 || !strings.HasPrefix(got.points[0], c.on+" ")) {
			t.Errorf("%s: %v %v %v", c.name, got.points, got.reasons(), got.err)
		}
	}
}

// TestKinetoSecrets: nothing that the importer has no use for comes out again.
func TestKinetoSecrets(t *testing.T) {
	const secret = "hf_SeCrEt"
	q := []int64{1, 512, 8, 64}
	text := strings.NewReplacer(
		`{"deviceProperties"`, `{"`+secret+`":"`+secret+`","metadata":{"env":{"TOKEN":"`+secret+`"}},"distributedInfo":{"rank":0,"world_size":2,"nccl_version":"`+secret+`"},"deviceProperties"`,
		`"args":{`, `"args":{"`+secret+`":"`+secret+`","Process Group Name":"`+secret+`",`,
	).Replace(onH100(
		flashForward(7, q, q, "False"), gpuKernel(7, fa2Kernel, 20), gpuKernel(8, fa2Kernel+secret, 20),
		cpuOp(9, secret, nil, nil, nil), commOp(0, 1, "allreduce "+secret, 8, 8, 2), commOp(0, 2, "allreduce", 8, 8, 2), flashForward(5, q, q, secret), gpuKernel(5, fa2Kernel, 3)))
	got := importText(t, Options{}, text)
	report, err := json.Marshal(got.report)
	if err != nil || got.err != nil || len(got.points) != 1 || got.report.Rows != 5 {
		t.Fatalf("%v %v %s", err, got.err, report)
	}
	if strings.Contains(strings.ToLower(string(report)+strings.Join(got.points, "")), strings.ToLower(secret)) {
		t.Errorf("a secret came out: %s %v", report, got.points)
	}
}

// FuzzKineto: no input panics, and what comes out is valid.
func FuzzKineto(f *testing.F) {
	q := []int64{2, 559, 16, 64}
	f.Add([]byte(onH100(flashForward(7, q, q, "True"), gpuKernel(7, fa2Kernel, 10), commOp(0, 2, "allreduce", 8, 8, 2))))
	f.Add([]byte(onH100(event("cpu_op", "aten::mm", 1, 1, 500, 50, map[string]any{"External id": 5, "Input Dims": [][]int64{{4, 8}, {8, 4}}}), gpuKernel(5, "gemm", 1))))
	f.Add([]byte(`{"traceEvents":[{"ph":"X","cat":"kernel","name":"ncclKernel","ts":1,"dur":NaN,"args":{"External id":"1"}}`))
	f.Add([]byte(`[{"ph":"X","cat":"user_annotation","name":"nccl:all_to_all","ts":1,"dur":9,"args":{"Input Dims":[[6144]]}}]`))
	f.Add([]byte(gzipped(onH100())))
	f.Add([]byte(onRank(0, 2, commKernelEvent(10000, 50, "allreduce", 8, 8, 2, nil), commKernelEvent(10100, 50, "all_to_allv", 8, 8, 2, map[string]any{"In split size": "[1, 3]"}))))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := &Sink{best: map[string]*utilisation{}, Options: Options{Device: "h100_sxm", Nodes: 1}}
		other := onRank(1, 2, commKernelEvent(10000, 50, "allreduce", 8, 8, 2, nil))
		if err := readKineto(s, []Source{textSource("x", string(data)), textSource("y", other)}); err != nil {
			return
		}
		lost := 0
		for _, d := range s.report.Dropped {
			lost += d.Rows
		}
		if lost+s.report.Points != s.report.Rows {
			t.Errorf("%d rows, %d points and %d dropped", s.report.Rows, s.report.Points, lost)
		}
		for _, d := range s.devices {
			if err := d.Validate(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestKinetoMerged: in the traces of several ranks put into one file, as SGLang
// and others do, an id is that of an op of each. The sum of one rank's kernel and
// another's was a time of attention.
func TestKinetoMerged(t *testing.T) {
	of := func(rank, event string) string {
		return strings.NewReplacer(`"pid":10`, `"pid":"[`+rank+`] 10"`, `"pid":0`, `"pid":"[`+rank+`] 0"`).Replace(event)
	}
	flash, kernel := flashForward(7, []int64{2, 559, 16, 64}, []int64{2, 559, 4, 64}, "True"), gpuKernel(7, fa2Kernel, 113.775)
	merged := onH100(of("TP00", flash), of("TP00", kernel), of("TP01", cpuOp(7, "aten::add", nil, nil, nil)), of("TP01", gpuKernel(7, "vectorized_elementwise_kernel", 40)))
	got := importText(t, Options{}, merged)
	const want = `rank0.json: the ops of several processes, "[TP00] 10" and "[TP01] 10": traces of several ranks put into one`
	if got.err == nil || !strings.HasPrefix(got.err.Error(), want) {
		t.Errorf("%v, points %q", got.err, got.points)
	}
	// One rank's alone is as good as before, and so is one with ops of process 0.
	for _, text := range []string{
		onH100(of("TP00", flash), of("TP00", kernel)),
		onH100(flash, kernel, strings.Replace(cpuOp(8, "aten::add", nil, nil, nil), `"pid":10`, `"pid":0`, 1)),
	} {
		if got := importText(t, Options{}, text); !slices.Equal(got.points, []string{attentionPoint}) {
			t.Errorf("%q, %v", got.points, got.err)
		}
	}
}
