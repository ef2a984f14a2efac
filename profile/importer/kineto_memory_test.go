package importer

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
)

// endlessTrace is a trace of so many events or calls with one attention at
// the end, made as it is read.
type endlessTrace struct {
	n, i int
	each func(i int) string // with a comma behind
	rest string
	peak *uint64 // most bytes in use at ten moments
}

// Read implements io.Reader.
func (e *endlessTrace) Read(p []byte) (int, error) {
	for e.rest == "" {
		switch {
		case e.i == 0:
			e.rest = `{"deviceProperties":[{"id":0,"name":"NVIDIA H100 80GB HBM3"}],"traceEvents":[`
		case e.i <= e.n:
			e.rest = e.each(e.i)
		case e.i == e.n+1:
			q := []int64{2, 559, 16, 64}
			e.rest = flashForward(7, q, []int64{2, 559, 4, 64}, "True") + "," + gpuKernel(7, fa2Kernel, 113.775) + "]}"
		default:
			return 0, io.EOF
		}
		if e.i++; e.i%(e.n/10) == 0 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			*e.peak = max(*e.peak, m.HeapAlloc)
		}
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

// ReadAt implements File.
func (e *endlessTrace) ReadAt([]byte, int64) (int, error) { return 0, errors.New("read front to back") }

// Close implements File.
func (e *endlessTrace) Close() error { return nil }

// held reads a trace of so many events, and says what was in use at most.
func held(t *testing.T, n int, each func(int) string) (tr *trace, peak uint64) {
	t.Helper()
	src := Source{Name: "endless", Open: func() (File, error) { return &endlessTrace{n: n, each: each, peak: &peak}, nil }}
	tr, err := readTrace(src)
	if err != nil {
		t.Fatalf("%d events: %v", n, err)
	}
	return tr, peak
}

// TestKinetoMemory: events that tell nothing take no memory. 300,000 of them
// are 50 MB of text; what is allocated does not grow with their number.
func TestKinetoMemory(t *testing.T) {
	python := func(i int) string {
		return fmt.Sprintf(`{"ph":"X","cat":"python_function","name":"f(%d): %s","pid":%d,"tid":1,"ts":%d.5,"dur":3.25,"args":{"Python id":%d,"Call stack":"%s"}},`,
			i, "torch/nn/modules/module.py", i%7, i, i, "module;forward;call;apply")
	}
	one, few := held(t, 1000, python)
	_, many := held(t, 300_000, python)
	if len(one.ops) != 1 || one.ops[0].kernels != 1 || many > few+1<<20 {
		t.Errorf("%d bytes for 300,000 events, %d for 1,000; %+v", many, few, one)
	}
}

// TestKinetoCallMemory: a call takes what it is told by, not what ran inside it. Each of
// these has six ops inside, as a linear layer has, and a launch that names it, of a kernel
// that does not: 1,400 bytes a call where all that ran inside is kept.
func TestKinetoCallMemory(t *testing.T) {
	q := []int64{2, 559, 16, 64}
	call := func(i int) string {
		id := i + 10
		events := []string{flashForward(id, q, q, "True")}
		for j := range 6 {
			events = append(events, event("cpu_op", "aten::as_strided", 10, 10, 100*id+j, 0.5, map[string]any{"External id": 1<<30 + 6*i + j}))
		}
		events = append(events,
			event("cuda_runtime", "cudaLaunchKernel", 10, 10, 100*id+7, 1, map[string]any{"External id": id, "correlation": id + 5000}),
			event("kernel", fa2Kernel, 0, 7, 100*id+20, 9, map[string]any{"correlation": id + 5000, "device": 0}))
		return strings.Join(events, ",") + ","
	}
	one, few := held(t, 100, call)
	tr, many := held(t, 20_000, call)
	each := int64(many-few) / 19_900
	t.Logf("%d bytes a call", each)
	if len(one.ops) != 101 || len(tr.ops) != 20_001 || tr.ops[0].kernels != 1 || tr.full || each > 512 {
		t.Errorf("%d bytes a call, %d ops", each, len(tr.ops))
	}
}

// TestKinetoKeepsOpsAroundLaunches: an op of no interest inside a call is kept where a launch
// that names no op lies in it, from its start to its end, and is then what the kernel is of.
func TestKinetoKeepsOpsAroundLaunches(t *testing.T) {
	q := []int64{1, 512, 8, 64}
	flash := flashForward(7, q, q, "False") // from 700 to 750
	inner := event("cpu_op", "aten::fill_", 10, 10, 720, 8, map[string]any{"External id": 8})
	for at, within := range map[int]bool{719: false, 720: true, 724: true, 728: true, 729: false} {
		tr, err := readTrace(textSource("x", onH100(flash, inner,
			event("cuda_runtime", "cudaLaunchKernel", 10, 10, at, 1, map[string]any{"correlation": 41}),
			event("kernel", fa2Kernel, 0, 7, 2000, 20, map[string]any{"correlation": 41}))))
		if err != nil {
			t.Fatal(err)
		}
		ops, kernels := 1, 1
		if within {
			ops, kernels = 2, 0
		}
		if len(tr.ops) != ops || tr.ops[0].kernels != kernels {
			t.Errorf("a launch at %d: %d ops, the call has %d kernels; want %d and %d", at, len(tr.ops), tr.ops[0].kernels, ops, kernels)
		}
	}
}

// TestKinetoKeys: neither kernels of no known op nor the longest arguments, names
// and threads are kept as they are: a small compressed file holds gigabytes of them.
func TestKinetoKeys(t *testing.T) {
	long := strings.Repeat(" ", 1<<20)
	var events []string
	for i := range 20 {
		wide := strings.NewReplacer(`"Input Dims":[`, `"Input Dims":[`+long, `"tid":10`, `"tid":"`+long+`"`)
		events = append(events, wide.Replace(flashForward(i, []int64{1, 64 + int64(i), 8, 64}, []int64{1, 512, 8, 64}, "False")))
		events = append(events, commKernelEvent(i, 50, "allreduce", 64+i, 64+i, 2, map[string]any{"Process Group Name": long}), gpuKernel(90+i, fa2Kernel, 3))
	}
	tr, err := readTrace(textSource("x", onH100(events...)))
	if err != nil || len(tr.calls) != 20 || len(tr.args) != 20 || len(tr.ops) != 20 {
		t.Fatalf("%v, %d calls, %d collectives, %d ops", err, len(tr.calls), len(tr.args), len(tr.ops))
	}
	held := 0
	for key := range tr.calls {
		held += len(key)
	}
	for key, a := range tr.args {
		held += len(key) + len(a.key)
	}
	for key := range tr.threads {
		held += len(key)
	}
	if held > 1<<18 || len(tr.loose) > 1 {
		t.Errorf("%d bytes of keys, %d kernels", held, len(tr.loose))
	}
}

// TestKinetoMended: what is no JSON is made one, the rest stays as it is.
func TestKinetoMended(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{"a":NaN,"b":[-Infinity,inf,+1,1e-5],"NaN":"NaN, nan"}`, `{"a":null,"b":[null,null,+1,1e-5],"NaN":"NaN, nan"}`},
		{`{"a":-nan(ind),"b":true,"c":null,"d":None}`, `{"a":null,"b":true,"c":null,"d":null}`},
		{"\"a\x00\tb\"", `"a  b"`},
		{`"C:\Users\n\"\\"`, `"C:\\Users\n\"\\"`},
		{`nan`, `null`},
		{`"torn nan`, `"torn nan`},
	} {
		for _, size := range []int{1, 3, 1000} {
			got, err := io.ReadAll(&mender{in: &chunks{c.in, size}})
			if err != nil || string(got) != c.want {
				t.Errorf("%q by %d: %q %v, want %q", c.in, size, got, err, c.want)
			}
		}
	}
	huge := io.MultiReader(strings.NewReader(`{"traceEvents":[{"name":"`), &endlessName{})
	if _, err := io.Copy(io.Discard, &mender{in: huge}); err == nil || !strings.Contains(err.Error(), "not a trace") {
		t.Errorf("an event without end: %v", err)
	}
}

type endlessName struct{}

func (endlessName) Read(p []byte) (int, error) { return copy(p, strings.Repeat("x", len(p))), nil }

// chunks hands a text out by so many bytes.
type chunks struct {
	rest string
	size int
}

// Read implements io.Reader.
func (c *chunks) Read(p []byte) (int, error) {
	if c.rest == "" {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), c.size)], c.rest)
	c.rest = c.rest[n:]
	return n, nil
}
