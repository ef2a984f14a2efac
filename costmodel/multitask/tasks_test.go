package multitask

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
)

// pair is a text and an image encoder, and a module that needs both.
func pair() *Tasks {
	shape := func(tokens units.Tokens) *Shape { return &Shape{SeqLen: tokens, Hidden: 768, FFN: 3072, QHeads: 12} }
	return &Tasks{
		Header: doc.Header{Schema: Schema, Tool: "test"}, Name: "pair",
		Modules: []Module{
			{Name: "text", Task: "t", Layers: 12, Batch: 64, Shape: shape(77)},
			{Name: "vision", Task: "t", Layers: 24, Batch: 64, Shape: shape(257)},
			{Name: "both", Task: "t", Layers: 2, Batch: 32, After: []string{"text", "vision"}, Shape: shape(128)},
		},
	}
}

// curved is the same with curves.
func curved() *Tasks {
	t := pair()
	for i := range t.Modules {
		t.Modules[i].Shape, t.Modules[i].Curve = nil, &Curve{Fixed: 0.1, Sync: 0.2, PerSample: 0.3}
	}
	return t
}

func TestTasksNameWhatIsWrong(t *testing.T) {
	for _, tasks := range []*Tasks{pair(), curved()} {
		if err := tasks.Validate(); err != nil {
			t.Fatal(err)
		}
	}
	of := func(tasks func() *Tasks, damage func(*Module)) func() *Tasks {
		return func() *Tasks {
			x := tasks()
			damage(&x.Modules[1])
			return x
		}
	}
	shape := func(damage func(*Shape)) func() *Tasks {
		return of(pair, func(m *Module) { damage(m.Shape) })
	}
	curve := func(damage func(*Curve)) func() *Tasks {
		return of(curved, func(m *Module) { damage(m.Curve) })
	}
	for want, tasks := range map[string]func() *Tasks{
		"modules: 0: want 1 to 1000":    func() *Tasks { return &Tasks{} },
		"modules: 1001: want 1 to 1000": func() *Tasks { return &Tasks{Modules: make([]Module, 1001)} },

		"modules[1] ().name: empty":                                                of(pair, func(m *Module) { m.Name = "" }),
		"modules[1] (vision).task: empty: name the task":                           of(pair, func(m *Module) { m.Task = "" }),
		"modules[1] (vision).layers: missing or 0: want 1 to 4096":                 of(pair, func(m *Module) { m.Layers = 0 }),
		"modules[1] (vision).layers: 4097: want 1 to 4096":                         of(pair, func(m *Module) { m.Layers = 4097 }),
		"modules[1] (vision).batch_samples: missing or 0: want 1 to 65536":         of(pair, func(m *Module) { m.Batch = 0 }),
		"modules[1] (vision).batch_samples: 65537: want":                           of(pair, func(m *Module) { m.Batch = 65537 }),
		"modules[1] (vision).shape, curve: want exactly one of the two":            of(pair, func(m *Module) { m.Shape = nil }),
		"modules[1] (vision).shape, curve: want exactly one":                       of(pair, func(m *Module) { m.Curve = &Curve{Fixed: 1} }),
		"modules[1].name: \"text\": is modules[0]'s too":                           of(pair, func(m *Module) { m.Name = "text" }),
		"modules[1] (vision): modules[0] has a shape and this one not; either all": of(pair, func(m *Module) { m.Shape, m.Curve = nil, &Curve{Fixed: 1} }),
		"modules[1] (vision): modules[0] has a curve and this one not; either all": of(curved, func(m *Module) { m.Shape, m.Curve = pair().Modules[1].Shape, nil }),

		"modules[1] (vision).after[0]: \"txet\": no module is named so (did you mean \"text\"?)": of(pair, func(m *Module) { m.After = []string{"txet"} }),
		"modules[1] (vision).after[1]: \"nothing like it\": no module is named so":               of(pair, func(m *Module) { m.After = []string{"text", "nothing like it"} }),
		"modules[1] (vision).after[1]: \"text\": named twice":                                    of(pair, func(m *Module) { m.After = []string{"text", "text"} }),
		"modules[1] (vision).after: it waits for itself, by [\"vision\"]":                        of(pair, func(m *Module) { m.After = []string{"vision"} }),
		"modules[1] (vision).after: it waits for itself, by [\"text\" \"both\"]":                 of(curved, func(m *Module) { m.After = []string{"text", "both"} }),

		"modules[1] (vision).shape.seq_len_tokens: missing or 0: want 1 to 16777216":                    shape(func(s *Shape) { s.SeqLen = 0 }),
		"modules[1] (vision).shape.seq_len_tokens: 16777217: want":                                      shape(func(s *Shape) { s.SeqLen = 16777217 }),
		"modules[1] (vision).shape.q_heads: 0: want a divisor of hidden, 768, or state head_dim":        shape(func(s *Shape) { s.QHeads = 0 }),
		"modules[1] (vision).shape.q_heads: 13: want a divisor of hidden, 768, or state head_dim":       shape(func(s *Shape) { s.QHeads = 13 }),
		"modules[1] (vision).shape.q_heads: 0: want 1 to 4096":                                          shape(func(s *Shape) { s.QHeads, s.HeadDim = 0, 64 }),
		"modules[1] (vision).shape.hidden: 0: want 1 to 16777216":                                       shape(func(s *Shape) { s.Hidden = 0 }),
		"modules[1] (vision).shape.ffn: -1: want 1 to 16777216":                                         shape(func(s *Shape) { s.FFN = -1 }),
		"modules[1] (vision).shape.kv_heads: 5: must divide q_heads 12":                                 shape(func(s *Shape) { s.KVHeads = 5 }),
		"modules[1] (vision).shape.head_dim: -4: want 1 to 4096":                                        shape(func(s *Shape) { s.HeadDim = -4 }),
		"modules[1] (vision).shape.layers, hidden, ffn, vocab: 2.53e+15 parameters: want at most 1.41e": shape(func(s *Shape) { s.Hidden, s.FFN, s.QHeads = 1<<22, 1<<22, 1<<10 }), // 24 x 6 x 2^44

		"modules[1] (vision).curve.fixed_s: -1: want 0 to 1e+06 s":                  curve(func(c *Curve) { c.Fixed = -1 }),
		"modules[1] (vision).curve.sync_s: NaN: want 0":                             curve(func(c *Curve) { c.Sync = units.Seconds(math.NaN()) }),
		"modules[1] (vision).curve.sample_s: 2e+06: want 0":                         curve(func(c *Curve) { c.PerSample = 2e6 }),
		"modules[1] (vision).curve.sample_s: 0, and so is fixed_s: a layer takes s": curve(func(c *Curve) { c.Fixed, c.PerSample = 0, 0 }),
	} {
		if err := tasks().Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("want %q\n got %v", want, err)
		}
	}
}

func TestTasksComeBack(t *testing.T) {
	for _, tasks := range []*Tasks{pair(), curved()} {
		data, err := doc.Encode(tasks)
		if err != nil {
			t.Fatal(err)
		}
		var back Tasks
		if err := doc.Decode("x", data, &back); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tasks, &back); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
}

// The reader takes nothing that it does not know, and says where it stands.
func TestTasksAreReadStrictly(t *testing.T) {
	const good = `{"schema": "evenkeel.tasks/v1", "tool": "t", "created": "", "name": "n", "modules": [
{"name": "m", "task": "t", "layers": 2, "batch_samples": 4, "curve": {"fixed_s": 1, "sync_s": 0, "sample_s": 0}}]}`
	var tasks Tasks
	if err := doc.Decode("x.json", []byte(good), &tasks); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{"/v1", "/v2", "v2"},
		{"evenkeel.tasks", "evenkeel.plan", "is an evenkeel.plan, expected evenkeel.tasks"},
		{`"layers"`, `"layer"`, "x.json:2:"},
		{`"layers": 2`, `"layers": "2"`, "modules[0].layers"},
		{`"layers": 2`, `"layers": null`, "modules[0].layers"},
		{`"layers": 2`, `"layers": 2, "layers": 3`, "x.json:2:"},
		{`"sync_s"`, `"sync"`, "x.json:2:"},
		{`]}`, `]} x`, "x.json:2:"},
		{`"layers": 2`, `"layers": 0`, "modules[0] (m).layers: missing or 0: want"},
		{`"layers": 2, `, ``, "modules[0] (m).layers: missing or 0: want"},
	} {
		err := doc.Decode("x.json", []byte(strings.Replace(good, c.old, c.new, 1)), &tasks)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s for %s: %v, want %s", c.new, c.old, err, c.want)
		}
	}
}

// respects says whether an order has every module once, behind those that it needs.
func (x *Tasks) respects(order []int) error {
	place := make([]int, len(x.Modules))
	for i, m := range order {
		if place[m] != 0 {
			return fmt.Errorf("%v has %d twice", order, m)
		}
		place[m] = i + 1
	}
	for m, needs := range x.Needs() {
		if place[m] == 0 {
			return fmt.Errorf("%v lacks %d", order, m)
		}
		for k, need := range needs {
			if x.Modules[need].Name != x.Modules[m].After[k] || place[need] > place[m] {
				return fmt.Errorf("%v has %d before %d, which it needs: %v", order, m, need, x.Modules[m].After)
			}
		}
	}
	return nil
}

// Modules may be written before those that they need; and of what waits for itself, and what
// waits for that, none is in the order.
func TestOrderRespectsNeeds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "modules")
		var all []int
		for m := range n {
			all = append(all, m)
		}
		turn := rapid.Permutation(all).Draw(t, "turn") // in which they may be trained
		x := &Tasks{Modules: make([]Module, n)}
		for i, m := range turn {
			x.Modules[m] = module(fmt.Sprint("m", m), 1, 1)
			for _, before := range turn[:i] {
				if rapid.Bool().Draw(t, "needs") {
					x.Modules[m].After = append(x.Modules[m].After, fmt.Sprint("m", before))
				}
			}
		}
		if err := x.Validate(); err != nil {
			t.Fatal(err)
		}
		if err := x.respects(x.Order()); err != nil {
			t.Fatal(err)
		}
		waits := turn[rapid.IntRange(0, n-1).Draw(t, "waits for itself")]
		x.Modules[waits].After = append(x.Modules[waits].After, x.Modules[waits].Name)
		if order := x.Order(); slices.Contains(order, waits) || x.Validate() == nil {
			t.Fatalf("%d waits for itself, and is in %v", waits, order)
		}
	})
}

func TestOrderIsAsWrittenWhereItMay(t *testing.T) {
	x := &Tasks{Modules: []Module{module("a", 1, 1, "d"), module("b", 1, 1), module("c", 1, 1, "b"), module("d", 1, 1)}}
	if got := x.Order(); !slices.Equal(got, []int{1, 2, 3, 0}) {
		t.Error(got)
	}
}

// What laws and memory are asked for: fields that are left out have their usual values, and
// whoever has a gate in the MLP is built as Llama is in all else.
func TestModelsOfShapes(t *testing.T) {
	m := pair().Modules[1]
	want := costmodel.Model{
		Name: "vision", Layers: 24, Hidden: 768, FFN: 3072, QHeads: 12, KVHeads: 12, HeadDim: 64,
		Vocab: 64, TiedEmbeddings: true, LayerNorm: true, PositionRows: 257, MaxLen: 257,
	}
	if diff := cmp.Diff(want, m.Model()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	*m.Shape = Shape{SeqLen: 100, Hidden: 768, FFN: 3072, QHeads: 12, KVHeads: 3, HeadDim: 48, GatedMLP: true}
	want.KVHeads, want.HeadDim, want.GatedMLP = 3, 48, true
	want.LayerNorm, want.PositionRows, want.MaxLen = false, 0, 0
	if diff := cmp.Diff(want, m.Model()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if (Shape{Causal: true}).Mask() != op.Diag || (Shape{}).Mask() != op.Full {
		t.Error("decoders see what is before them, encoders all")
	}
	if pair().Published() || !curved().Published() {
		t.Error("published are those that have curves")
	}
}

// FuzzTasks: what is taken can be written and is the same when it is read again, and its
// modules have an order.
func FuzzTasks(f *testing.F) {
	for _, tasks := range []*Tasks{pair(), curved()} {
		data, err := doc.Encode(tasks)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"schema":"evenkeel.tasks/v1","tool":"","created":"","name":"","modules":[{"name":"a","task":"t","layers":1,"batch_samples":1,"after":["b","b"],"curve":{"fixed_s":1,"sync_s":1,"sample_s":1}},{"name":"b","task":"t","layers":1,"batch_samples":1,"after":[],"curve":{"fixed_s":1,"sync_s":1,"sample_s":1}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var x, back Tasks
		if doc.Decode("x", data, &x) != nil {
			return
		}
		first, err := doc.Encode(&x)
		if err != nil {
			t.Fatal(err)
		}
		if err := doc.Decode("x", first, &back); err != nil {
			t.Fatal(err)
		}
		if again, err := doc.Encode(&back); err != nil || string(again) != string(first) {
			t.Fatalf("%v\n%s\n%s", err, first, again)
		}
		if err := x.respects(x.Order()); err != nil {
			t.Fatal(err)
		}
	})
}
