package costmodel

import (
	"errors"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// withGELU adds a law of gelu to every device of a profile.
func withGELU(p *Profile) *Profile {
	for _, l := range p.Laws {
		if l.Op == op.KindSwiGLU {
			l.Op = op.KindGELU
			p.Laws = append(p.Laws, l)
		}
	}
	return p
}

// blocks are shapes of MLP, norm and positions that a layer can have.
func blocks() map[string]func(*Model) {
	return map[string]func(*Model){
		"llama": func(*Model) {},
		"gpt2": func(m *Model) {
			m.GatedMLP, m.LayerNorm, m.PositionRows, m.MaxLen = false, true, 1<<20, 1<<20
		},
		"qwen3": func(m *Model) { m.QKNorm = true },
		"neox":  func(m *Model) { m.GatedMLP, m.LayerNorm, m.RotaryDim = false, true, 16 },
		"gptj":  func(m *Model) { m.GatedMLP, m.LayerNorm, m.SharedNorm, m.RotaryDim = false, true, true, 64 },
	}
}

// linearOps lists, call by call, the linear part of one layer of a block on n
// tokens: forward, and backward with element-wise ops at twice their forward.
func linearOps(block string, n units.Tokens) (forward, backward []op.Shape) {
	row := func(width int) op.Rowwise { return op.Rowwise{Tokens: n, Width: width, DType: op.F32} }
	norm, rotary := op.Norm{Rowwise: row(256)}, []op.Shape{}
	light := []op.Shape{norm, norm}
	switch block {
	case "llama":
		light, rotary = append(light, op.SwiGLU{Rowwise: row(688)}), []op.Shape{op.Rope{Rowwise: row(256)}, op.Rope{Rowwise: row(128)}}
	case "qwen3": // norms and rotation of 4 query and of 2 key heads
		light, rotary = append(light, norm, op.Norm{Rowwise: row(128)}, op.SwiGLU{Rowwise: row(688)}), []op.Shape{op.Rope{Rowwise: row(256)}, op.Rope{Rowwise: row(128)}}
	case "gpt2":
		light = append(light, op.GELU{Rowwise: row(688)})
	case "neox": // a quarter of 64 elements of 4 query and of 2 key heads
		light, rotary = append(light, op.GELU{Rowwise: row(688)}), []op.Shape{op.Rope{Rowwise: row(64)}, op.Rope{Rowwise: row(32)}}
	case "gptj":
		light, rotary = []op.Shape{norm, op.GELU{Rowwise: row(688)}}, []op.Shape{op.Rope{Rowwise: row(256)}, op.Rope{Rowwise: row(128)}}
	}
	for _, s := range append(light, rotary...) {
		forward, backward = append(forward, s), append(backward, s, s)
	}
	up := 688
	if block == "llama" || block == "qwen3" {
		up = 1376
	}
	for _, nk := range [][2]int{{512, 256}, {256, 256}, {up, 256}, {256, 688}} {
		g := op.GEMM{Pass: op.Forward, M: n, N: nk[0], K: nk[1], DType: op.F32}
		forward = append(forward, g)
		for _, g.Pass = range []op.Pass{op.DGrad, op.WGrad} {
			backward = append(backward, g)
		}
	}
	return forward, backward
}

// The linear part of each kind of block is the sum of its ops.
func TestLinearPartsAreTheSumOfTheirOps(t *testing.T) {
	p := withGELU(usual(t))
	q := NewPredictor(p)
	sum := func(shapes []op.Shape) (total units.Seconds) {
		for _, s := range shapes {
			e, err := q.Time("slow", s)
			if err != nil {
				t.Fatal(err)
			}
			total += e.Mid
		}
		return total
	}
	for name, change := range blocks() {
		j := testJob(cluster(t, "1x1 slow", p, "", ""), []units.Tokens{5000})
		change(&j.Model)
		if err := j.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		c := newCoster(q, j)
		forward, backward := linearOps(name, 5000)
		if got, want := c.beforeAttention("slow", 5000, nil)+c.afterAttention("slow", 5000, nil), sum(forward); !near(got, want, 1e-12) || c.err != nil {
			t.Errorf("%s: forward %v, its ops %v: %v", name, got, want, c.err)
		}
		if got, want := c.backToAttention("slow", 5000, nil)+c.backFromAttention("slow", 5000, nil), sum(backward); !near(got, want, 1e-12) || c.err != nil {
			t.Errorf("%s: backward %v, its ops %v: %v", name, got, want, c.err)
		}
	}
}

// A profile from before gelu names the command that measures it; a gated block
// does not ask for it, nor a GPT-2 block for rope and swiglu.
func TestBlocksAskForTheirLawsOnly(t *testing.T) {
	for name, change := range blocks() {
		p := usual(t)
		if name == "gpt2" {
			p = withGELU(p)
			p.Laws = slicesWithout(p.Laws, op.KindRope, op.KindSwiGLU)
		}
		j := testJob(cluster(t, "1x1 slow", p, "", ""), []units.Tokens{5000})
		change(&j.Model)
		c := newCoster(NewPredictor(p), j)
		c.beforeAttention("slow", 5000, nil)
		c.afterAttention("slow", 5000, nil)
		var missing *MissingLawError
		switch {
		case name == "llama" || name == "qwen3" || name == "gpt2":
			if c.err != nil {
				t.Errorf("%s: %v", name, c.err)
			}
		case !errors.As(c.err, &missing) || !strings.Contains(c.err.Error(), "evenkeel calibrate") || !strings.Contains(c.err.Error(), "gelu"):
			t.Errorf("%s: %v", name, c.err)
		}
	}
}
