package replay

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
)

// madeHeader is of two plans on two ranks, 2 blocks.
func madeHeader() *Header {
	job := costmodel.Job{
		Model: costmodel.Model{Name: "llama", Layers: 2, Hidden: 256, FFN: 512, QHeads: 4, KVHeads: 2, HeadDim: 64, Vocab: 128, GatedMLP: true},
		Cluster: costmodel.Cluster{Nodes: []costmodel.Node{{
			Name: "n0", Link: "gloo", Devices: []op.Member{{Device: "torch_cpu:1", Count: 2}},
		}}},
		SeqLen: 256, DType: "f32", Recompute: costmodel.RecomputeNone, RingBuffers: 2, LossChunk: 256, Zero: costmodel.Zero3, Accumulate: 1,
	}
	layout := costmodel.Layout{
		Shards: []costmodel.Shard{{Segments: []costmodel.Segment{{Start: 0, End: 100}}}, {Segments: []costmodel.Segment{{Start: 100, End: 256}}}},
		Groups: []costmodel.Group{{{Rank: 0, QHeads: 4}}, {{Rank: 1, QHeads: 4}}},
	}
	full := job
	full.Recompute = costmodel.RecomputeFull
	sum := strings.Repeat("ab", 32)
	return &Header{
		Header:  doc.Header{Tool: "evenkeel test", Created: "2026-01-31T12:00:00Z", Inputs: []doc.Input{{Path: "a.plan.json", SHA256: sum}, {Path: "b.plan.json", SHA256: sum}}},
		Backend: "gloo", Mode: ModeCPU, Parts: PartsLayer, Layers: 1, Kernel: "math", Docs: []units.Tokens{200, 56}, Seed: 1, Repeats: 2, Warmup: 1,
		Plans: []PlanRun{{Path: "a.plan.json", SHA256: sum, Strategy: "ring", Job: job, Layout: layout}, {Path: "b.plan.json", SHA256: sum, Strategy: "evenkeel", Job: full, Layout: layout}},
		Ranks: []Rank{
			{Rank: 0, Host: "here", Device: "torch_cpu:1", Threads: 1, Cores: []int{0}, Python: "3.11.2", Torch: "1.13.1"},
			{Rank: 1, Host: "here", Device: "torch_cpu:1", Threads: 1, Cores: []int{1}, Python: "3.11.2", Torch: "1.13.1"},
		},
		Numerics: []Numerics{
			{Plan: 0, Out: 1e-7, DQ: 2e-7, DK: 0, DV: 3e-7, Limit: 1e-5, Reference: "dense", Layer: &LayerNumerics{Out: 1e-7, DX: 1e-7, Limit: 2e-5}},
			{Plan: 1, Out: 1e-7, DQ: 2e-7, DK: 0, DV: 3e-7, Limit: 1e-5, Reference: "sampled", Rows: 256, Layer: &LayerNumerics{Limit: 2e-5, Skipped: "too long"}},
		},
		Exact: []ExactCounts{{Plan: 0, Messages: 4, Bytes: 1024, FLOPs: 1 << 40}, {Plan: 1, Messages: 4, Bytes: 1024, FLOPs: 1 << 40}},
	}
}

// madeTrace writes that header with a span and a step of everything.
func madeTrace(t testing.TB) (path string, spans []Span, steps []Step) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "x.trace.jsonl")
	err := WriteTrace(path, madeHeader(), func(span func(*Span) error, step func(*Step) error) error {
		for b := range 2 {
			for _, p := range []int{b, 1 - b} {
				for r := range 2 {
					s := Span{Block: b, Plan: p, Rank: r, Dir: Forward, Again: p == 1, Step: r, Op: Attn, T0NS: 5, DurNS: int64(1000*b + r), In: 7, FLOPs: 1 << 40}
					if r == 1 {
						s.Shape = []byte(`{"q_len":7}`)
					}
					k := Step{Block: b, Plan: p, Rank: r, DurNS: 5000}
					if err := errors.Join(span(&s), step(&k)); err != nil {
						return err
					}
					spans, steps = append(spans, s), append(steps, k)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return path, spans, steps
}

func TestATraceReadsBackAsWritten(t *testing.T) {
	path, wantSpans, wantSteps := madeTrace(t)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var spans []Span
	var steps []Step
	h, err := ReadTrace(path, bytes.NewReader(data), Visitor{
		Span: func(s *Span) error {
			spans = append(spans, *s)
			spans[len(spans)-1].Shape = bytes.Clone(s.Shape)
			return nil
		},
		Step: func(s *Step) error { steps = append(steps, *s); return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	want := madeHeader()
	want.Schema = TraceSchema
	if d := cmp.Diff(want, h); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(wantSpans, spans); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(wantSteps, steps); d != "" {
		t.Error(d)
	}
	if s := spans[0]; s.Start() != 5e-9 || spans[7].Dur() != 1001e-9 || wantSteps[0].Dur() != 5e-6 {
		t.Errorf("%v %v", s.Start(), spans[7].Dur())
	}
}

// Every way in which a trace can be wrong is told with line and field.
func TestWrongTracesAreRefusedWithTheField(t *testing.T) {
	path, _, _ := madeTrace(t)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	whole := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	if len(whole) != 18 {
		t.Fatalf("%d lines", len(whole))
	}
	for _, c := range []struct {
		line     int // that is changed, from 1; 0: in the whole file
		old, new string
		want     string
	}{
		{1, "evenkeel.trace/v1", "evenkeel.trace/v2", "evenkeel.trace/v2 was written by evenkeel test, this one reads v1; update evenkeel"},
		{1, "evenkeel.trace/v1", "evenkeel.plan/v2", "is an evenkeel.plan, expected evenkeel.trace"},
		{1, `"backend"`, `"backen"`, `unknown key "backen" (did you mean "backend"?)`},
		{1, `"gloo-cpu"`, `"gloo-gpu"`, `mode: "gloo-gpu": want gloo-cpu, gloo-1gpu or nccl`},
		{1, `"gloo-cpu"`, `"nccl"`, `mode: "nccl": cannot be with backend gloo`},
		{1, `"parts":"layer"`, `"parts":"all"`, `parts: "all": want layer, loss, step, attention`},
		{1, `"layers":1,"kernel"`, `"layers":0,"kernel"`, "layers: 0: want 1 to"},
		{1, `"repeats":2`, `"repeats":0`, "repeats: 0: want 1 to"},
		{1, `"warmup":1`, `"warmup":-1`, "warmup: -1: want 0 to"},
		{1, `"docs_tokens":[200,56]`, `"docs_tokens":[200,57]`, "docs_tokens: 257 tokens in all, or more: the sequence has 256"},
		{1, `"docs_tokens":[200,56]`, `"docs_tokens":[256,0]`, "docs_tokens[1]: 0: want 1 to"},
		{1, `"end_tokens":100`, `"end_tokens":99`, "plans[0].layout.shards: 255 tokens in all: the sequence has 256"},
		{1, `"rank":0,"host"`, `"rank":1,"host"`, "ranks[0].rank: 1: ranks are listed in order, want 0"},
		{1, `"cores":[1]`, `"cores":[-1]`, "ranks[1].cores[0]: -1"},
		{1, `"dq":2e-7`, `"dq":2e-4`, "numerics[0].dq: 0.0002: want 0 to the limit 1e-05"},
		{1, `"dq":2e-7`, `"dq":NaN`, "NaN is no JSON"},
		{1, `"dq":2e-7`, `"dq":null`, "numerics[0].dq: null: want a number"},
		{1, `"reference":"dense"`, `"reference":"none"`, `numerics[0].reference: "none": want dense or sampled`},
		{1, `"flops":1099511627776}]`, `"flops":-1}]`, "exact[1].flops: -1: must not be negative"},
		{2, `"op"`, `"opp"`, `unknown key "opp" (did you mean "op"?)`},
		{2, `"op":"attn"`, `"op":"atn"`, `x:2: op: "atn": want one of [stage_wait param_wait embed linear_in a2a_in ring_wait attn merge a2a_out linear_out loss grad_wait optimizer meet]`},
		{2, `"dir":"fwd"`, `"dir":"up"`, `x:2: dir: "up": want fwd or bwd`},
		{2, `"dir":"fwd"`, `"dir":"fwd","again":true`, "x:2: again: true: only a forward pass is run again, and only with recomputation"},
		{2, `"dur_ns":0`, `"dur_ns":-1`, "x:2: dur_ns: -1: want 0 to"},
		{2, `"dur_ns":0`, `"dur_ns":1e400`, "x:2"},
		{2, `"dur_ns":0`, `"dur_ns":0.5`, "x:2: dur_ns: 0.5: want a whole number"},
		{2, `"dur_ns":0`, `"dur_ns":null`, "x:2: dur_ns: null: want a whole number"},
		{2, `"t0_ns":5`, `"t0_ns":-5`, "x:2: t0_ns: -5"},
		{2, `"layer":0`, `"layer":1`, "x:2: layer: 1: want 0 to 0"},
		{2, `"mb":0`, `"mb":1`, "x:2: mb: 1: want 0 to 0"},
		{2, `"step":0`, `"step":3`, "x:2: step: 3: want 0 to 2"},
		{2, `"step":0`, `"step":0,"chunk":1`, "x:2: chunk: 1: want 0 to 0"},
		{1, `"strategy":"evenkeel"`, `"strategy":"evenkeel","micro_batches":3`, "micro_batches: 3: want 2 where micro-batches go in twos"},
		{2, `"rank":0`, `"rank":2`, "x:2: rank: 2: want 0 to 1"},
		{2, `"plan":0`, `"plan":2`, "x:2: plan: 2: want 0 to 1"},
		{2, `"block":0`, `"block":2`, "x:2: block: 2: want 0 to 1"},
		{2, `"block":0`, `"block":1`, "x:2: block: 0: it has 0 steps, want 4"},
		{2, `"bytes_in":7`, `"bytes_in":-7`, "x:2: bytes_in: -7"},
		{2, `"flops":1099511627776`, `"flops":0,"flops":0`, "key \"flops\" is given twice"},
		{4, `{"q_len":7}`, `[7]`, "x:4: shape: [7]: want an object"},
		{2, `{"t":"span"`, `{"t":"spam"`, `x:2: t: "spam": want span, step or end`},
		{2, `{"t":"span",`, `{"block":0,"t":"span",`, `x:2: t: "": want span, step or end`},
		{2, "span", "span" + strings.Repeat(" ", maxLine), "x:2: a line of"},
		{3, `"rank":0`, `"rank":1`, "x:5: rank: 1: a second step of rank 1, plan 0 in block 0"},
		{9, `{"t":"step"`, `{"t":"end"`, "x:9:12: unknown key \"block\""},
		{11, `"block":1`, `"block":0`, "x:11: block: 0: after a line of block 1: blocks must rise"},
		{12, `"block":1`, `"block":0`, "x:12: block: 0: after a line of block 1: blocks must rise"},
		{18, `"steps":8`, `"steps":9`, "x:18: steps: 9: the trace holds 8"},
		{18, `"spans":8`, `"spans":7`, "x:18: spans: 7: the trace holds 8"},
		{0, whole[17], whole[17] + "\n" + whole[17], "x:19: a line after the end"},
		{0, whole[17] + "\n", "", "x:17: it was cut off: the line \"end\" is missing; copy the file again, or make it again: evenkeel replay"},
		{0, whole[17] + "\n", whole[17], "x:17: it was cut off"},
		{0, whole[16] + "\n", "", "x:17: steps: 8: the trace holds 7"},
		{0, string(data), "", "x: holds no complete line; a trace begins with a header line"},
		{0, string(data), "{}\n", "not an evenkeel document: it has no \"schema\" key"},
	} {
		changed := string(data)
		if c.line == 0 {
			changed = strings.Replace(changed, c.old, c.new, 1)
		} else {
			lines := append([]string(nil), whole...)
			lines[c.line-1] = strings.Replace(lines[c.line-1], c.old, c.new, 1)
			changed = strings.Join(lines, "\n") + "\n"
		}
		if changed == string(data) {
			t.Errorf("line %d: %q is not there", c.line, c.old)
			continue
		}
		h, err := ReadTrace("x", strings.NewReader(changed), Visitor{})
		if err == nil || h != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("line %d, %.40q for %.40q:\ngot  %v\nwant %s", c.line, c.new, c.old, err, c.want)
		}
	}
}

// A block that the header promises and the lines lack, and the other way round.
func TestATraceOfTooFewBlocksIsRefused(t *testing.T) {
	h := madeHeader()
	h.Repeats = 3
	path := filepath.Join(t.TempDir(), "x")
	err := WriteTrace(path, h, func(_ func(*Span) error, step func(*Step) error) error {
		for p := range 2 {
			for r := range 2 {
				if err := step(&Step{Plan: p, Rank: r}); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "block 0 is the last, and the header has 3 blocks") {
		t.Error(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a trace that does not read back was written")
	}
}

func TestAVisitorStopsTheReading(t *testing.T) {
	path, _, _ := madeTrace(t)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	enough := errors.New("enough")
	n := 0
	_, err = ReadTrace(path, f, Visitor{Step: func(*Step) error {
		if n++; n == 3 {
			return enough
		}
		return nil
	}})
	if !errors.Is(err, enough) || n != 3 || !strings.Contains(err.Error(), path+":7: ") {
		t.Error(n, err)
	}
}

// endless is a trace of so many blocks, made while it is read.
type endless struct {
	lines, block int
	rest         []byte
}

func (e *endless) Read(p []byte) (int, error) {
	if len(e.rest) == 0 {
		for plan := range 2 {
			for r := range 2 {
				e.rest = fmt.Appendf(e.rest, `{"t":"span","block":%d,"plan":%d,"rank":%d,"layer":0,"mb":0,"dir":"fwd","step":0,"op":"attn","t0_ns":0,"dur_ns":1,"bytes_out":0,"bytes_in":0,"flops":0}`+"\n", e.block, plan, r)
				e.rest = fmt.Appendf(e.rest, `{"t":"step","block":%d,"plan":%d,"rank":%d,"dur_ns":1}`+"\n", e.block, plan, r)
			}
		}
		e.lines += 8
		e.block++
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

// Reading takes the same memory however long the trace is: what is allocated for
// a line does not stay.
func TestReadingTakesMemoryForOneLine(t *testing.T) {
	path, _, _ := madeTrace(t)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := bytes.Cut(data, []byte("\n"))
	h := &Header{}
	if err := doc.Decode(path, head, h); err != nil {
		t.Fatal(err)
	}
	h.Repeats = 1 << 20
	d := &reader{name: "x", header: h, block: tally{plans: 2, ranks: 2}}
	e := &endless{}
	line := func() {
		buf := make([]byte, 1<<12)
		n, _ := e.Read(buf)
		for l := range bytes.Lines(buf[:n]) {
			if err := d.line(1, bytes.TrimSpace(l)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if perBlock := testing.AllocsPerRun(200, line); perBlock > 200 {
		t.Errorf("%g allocations a block of 8 lines", perBlock)
	}
	if len(d.block.seen) != 4 {
		t.Errorf("it keeps %d steps, want those of one block: 4", len(d.block.seen))
	}
}

// smallTrace is the header of one plan in one block on two ranks, and the rest.
func smallTrace(f *testing.F) (head, rest []byte) {
	h := madeHeader()
	h.Repeats, h.Plans, h.Numerics, h.Exact = 1, h.Plans[:1], h.Numerics[:1], h.Exact[:1]
	path := filepath.Join(f.TempDir(), "x")
	err := WriteTrace(path, h, func(span func(*Span) error, step func(*Step) error) error {
		return errors.Join(span(&Span{Dir: Forward, Op: Attn, Shape: []byte("{}")}), step(&Step{}), step(&Step{Rank: 1}))
	})
	if err != nil {
		f.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	head, rest, _ = bytes.Cut(data, []byte("\n"))
	return append(head, '\n'), rest
}

// FuzzTrace: no input makes the reader panic, and what it accepts it accepts
// again after being written. An empty head stands for a right one, "pipeline" and "tasks" for theirs: the fuzzer
// takes minutes to minimise what is as long as that.
func FuzzTrace(f *testing.F) {
	right, rest := smallTrace(f)
	f.Add([]byte{}, rest)
	f.Add([]byte{}, rest[:len(rest)-3])
	f.Add([]byte(`{"schema":"evenkeel.trace/v1"}`), []byte{})
	f.Add([]byte("pipeline"), rest)
	f.Add([]byte("pipeline"), []byte(`{"t":"span","block":0,"plan":0,"rank":1,"layer":1,"mb":2,"dir":"fwd","step":0,"op":"stage_wait","t0_ns":0,"dur_ns":1,"bytes_out":0,"bytes_in":8,"flops":0}`+"\n"+
		`{"t":"step","block":0,"plan":0,"rank":0,"dur_ns":1}`+"\n"+`{"t":"step","block":0,"plan":0,"rank":1,"dur_ns":1}`+"\n"+`{"t":"step","block":0,"plan":0,"rank":2,"dur_ns":1}`+"\n"+`{"t":"end","steps":3,"spans":1}`+"\n"))
	f.Add([]byte("tasks"), []byte(`{"t":"span","block":0,"plan":0,"rank":1,"layer":2,"mb":2,"dir":"bwd","step":0,"op":"grad_wait","t0_ns":0,"dur_ns":1,"bytes_out":0,"bytes_in":8,"flops":0}`+"\n"+
		`{"t":"step","block":0,"plan":0,"rank":0,"dur_ns":1}`+"\n"+`{"t":"step","block":0,"plan":0,"rank":1,"dur_ns":1}`+"\n"+`{"t":"step","block":0,"plan":0,"rank":2,"dur_ns":1}`+"\n"+`{"t":"end","steps":3,"spans":1}`+"\n"))
	heads := map[string][]byte{"": right}
	for name, h := range map[string]*Header{"pipeline": pipelineHeader(), "tasks": tasksHeader()} {
		h.Schema = TraceSchema
		of, err := json.Marshal(h)
		if err != nil {
			f.Fatal(err)
		}
		heads[name] = append(of, '\n')
	}
	f.Fuzz(func(t *testing.T, head, rest []byte) {
		if of, known := heads[string(head)]; known {
			head = of
		}
		data := append(bytes.Clone(head), rest...)
		var again bytes.Buffer
		write := func(v any) error {
			line, err := json.Marshal(v)
			again.Write(append(line, '\n'))
			return err
		}
		end := &End{T: lineEnd}
		h, err := ReadTrace("x", bytes.NewReader(data), Visitor{
			Header: func(h *Header) error { return write(h) },
			Span:   func(s *Span) error { end.Spans++; return write(s) },
			Step:   func(s *Step) error { end.Steps++; return write(s) },
		})
		if err != nil {
			if h != nil || err.Error() == "" {
				t.Fatal(h, err)
			}
			return
		}
		if err := write(end); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadTrace("y", &again, Visitor{}); err != nil {
			t.Fatal(err)
		}
	})
}
