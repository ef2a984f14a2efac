package multitask

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// made is prices that are made up.
type made struct {
	node, pool []int               // by rank
	times      [][][]units.Seconds // by module, pool and samples: a layer's passes, a third of it forward
	gradients  []units.Seconds     // by module: a layer's exchange inside a node
	bytes      []units.Bytes       // by module: a sample's result
	states     []units.Bytes       // by module: a layer's, divided among its ranks
	kept       []units.Bytes       // by module: a layer's activations of a sample
	again      units.Bytes         // what a layer that is computed again holds of a sample
	room       []units.Bytes       // by pool
	lacks      error               // instead of exchanges and messages
	full       bool                // recomputation
	briefs     [][5]int            // what was asked for: module, pool, samples, ranks, layers
}

// far is how many times as long as inside a node it takes across nodes.
const far = 10

func (m *made) pass(module, pool, samples int) (pass, error) {
	t := m.times[module][pool][samples]
	return pass{t / 3, t - t/3}, nil
}

// replayed has a half of a pass before the attention, a third in it, and the rest behind it.
// Forward it may take a tenth longer, backward three.
func (m *made) replayed(module, pool, samples int) (layerReplay, error) {
	p, err := m.pass(module, pool, samples)
	parts := func(t, most units.Seconds) costmodel.LayerPass {
		x := costmodel.LayerPass{LinearIn: t / 2, Attention: t / 3}
		x.LinearOut = t - x.LinearIn - x.Attention
		x.Whole = costmodel.Estimate{Lo: 0.9 * t, Mid: t, Hi: most * t, Source: costmodel.Interpolated}
		return x
	}
	if m.full { // of the backward pass a half is the forward pass once more
		return layerReplay{parts(p.forward, 1.1), parts(p.backward-p.forward, 1.3), true}, err
	}
	return layerReplay{parts(p.forward, 1.1), parts(p.backward, 1.3), false}, err
}

func (m *made) exchange(module int, ranks []int) (units.Seconds, error) {
	t := m.gradients[module]
	for _, r := range ranks {
		if m.node[r] != m.node[ranks[0]] {
			return far * t, m.lacks
		}
	}
	return t, m.lacks
}

// wire is the seconds of a byte from one rank to another: the slower pool counts.
func (m *made) wire(from, to int) units.Seconds {
	t := 1e-9 * units.Seconds(1+max(m.pool[from], m.pool[to]))
	if m.node[from] != m.node[to] {
		t *= far
	}
	return t
}

func (m *made) send(from, to int, bytes units.Bytes) (units.Seconds, error) {
	return m.wire(from, to) * units.Seconds(bytes), m.lacks
}

func (m *made) result(module int, last bool) units.Bytes {
	if last {
		return 2 * m.bytes[module]
	}
	return m.bytes[module]
}

func (m *made) memory(module, n, samples int) layerMemory {
	return layerMemory{m.states[module] / units.Bytes(n), m.kept[module] * units.Bytes(samples), m.again * units.Bytes(samples)}
}

func (m *made) capacity(pool int) units.Bytes { return m.room[pool] }

func (m *made) brief(module, pool, samples int, ranks []int, layers int) (*costmodel.Step, error) {
	m.briefs = append(m.briefs, [5]int{module, pool, samples, len(ranks), layers})
	t := units.Seconds(layers) * m.times[module][pool][samples]
	return &costmodel.Step{Time: costmodel.Estimate{Lo: 0.9 * t, Mid: t, Hi: 1.1 * t}}, m.lacks
}

func (m *made) inOrder() (*Costs, []int) { return nil, nil }

func (m *made) warnings() []string { return []string{"made up"} }

// world is tasks with made-up prices on nodes of devices.
type world struct {
	tasks *Tasks
	nodes [][]string // device types by node
	*made
}

// proportional is prices of the modules in which a sample takes as long as a device type's
// number, from 1, in seconds.
func proportional(t testing.TB, nodes [][]string, modules ...Module) *world {
	t.Helper()
	w := &world{tasks: &Tasks{Modules: modules}, nodes: nodes, made: &made{}}
	pools := 0
	for _, node := range nodes {
		pools += len(slices.Compact(slices.Clone(node)))
	}
	for _, m := range modules {
		var times [][]units.Seconds
		for p := range pools {
			of := make([]units.Seconds, m.Batch+2)
			for k := range of {
				of[k] = units.Seconds(k * (p + 1))
			}
			times = append(times, of)
		}
		w.times = append(w.times, times)
	}
	w.gradients, w.bytes = make([]units.Seconds, len(modules)), make([]units.Bytes, len(modules))
	w.states, w.kept = slices.Clone(w.bytes), slices.Clone(w.bytes)
	w.room = make([]units.Bytes, pools)
	return w
}

// costs are new, so that nothing is remembered of prices before.
func (w *world) costs(t rapid.TB) *Costs {
	t.Helper()
	var ranks []costmodel.Rank
	for n, node := range w.nodes {
		for _, d := range node {
			ranks = append(ranks, costmodel.Rank{Node: n, Device: d})
		}
	}
	c, err := newCosts(w.tasks, ranks, w.made)
	if err != nil {
		t.Fatal(err)
	}
	w.node, w.pool = c.node, c.pool
	return c
}

func module(name string, layers, batch int, after ...string) Module {
	return Module{Name: name, Task: "t", Layers: layers, Batch: batch, After: after, Curve: &Curve{PerSample: 1}}
}

// drawWorld draws one to four modules, on one or two nodes of up to four devices of two
// types, with times that never fall with samples.
func drawWorld(t *rapid.T) *world {
	w := &world{tasks: &Tasks{}, made: &made{}}
	for range rapid.IntRange(1, 2).Draw(t, "nodes") {
		fast, slow := rapid.IntRange(0, 2).Draw(t, "fast"), rapid.IntRange(0, 2).Draw(t, "slow")
		node := slices.Concat(slices.Repeat([]string{"fast"}, fast), slices.Repeat([]string{"slow"}, slow))
		if len(node) == 0 {
			node = []string{"fast"}
		}
		w.nodes = append(w.nodes, node)
	}
	for m := range rapid.IntRange(1, 4).Draw(t, "modules") {
		x := module(fmt.Sprint("m", m), rapid.IntRange(1, 4).Draw(t, "layers"), rapid.IntRange(1, 6).Draw(t, "batch"))
		for before := range m {
			if rapid.IntRange(0, 2).Draw(t, "needs") == 0 {
				x.After = append(x.After, fmt.Sprint("m", before))
			}
		}
		w.tasks.Modules = append(w.tasks.Modules, x)
		var times [][]units.Seconds
		for range 2 {
			times = append(times, drawTimes(t, x.Batch))
		}
		w.times = append(w.times, times)
		w.gradients = append(w.gradients, units.Seconds(rapid.IntRange(0, 20).Draw(t, "gradients")))
		w.bytes = append(w.bytes, 1e8*units.Bytes(rapid.IntRange(0, 9).Draw(t, "bytes")))
	}
	return w
}

// drawTimes are times by samples, which rise or stay.
func drawTimes(t *rapid.T, batch int) []units.Seconds {
	times := make([]units.Seconds, batch+2)
	for k := 1; k < len(times); k++ {
		times[k] = times[k-1] + units.Seconds(rapid.IntRange(0, 9).Draw(t, "longer"))
		if k == 1 {
			times[k]++
		}
	}
	return times
}

// drawPlan draws runs of all modules in an order that is allowed, with waves or without.
func drawPlan(t *rapid.T, w *world) *Plan {
	p := &Plan{Waves: rapid.Bool().Draw(t, "waves")}
	left, wave := make([]int, len(w.tasks.Modules)), 0
	for m, x := range w.tasks.Modules {
		left[m] = x.Layers
	}
	devices := 0
	for _, node := range w.nodes {
		devices += len(node)
	}
	needs := w.tasks.Needs()
	for {
		var ready []int
		for m, n := range left {
			if n > 0 && !slices.ContainsFunc(needs[m], func(need int) bool { return left[need] > 0 }) {
				ready = append(ready, m)
			}
		}
		if len(ready) == 0 {
			return p
		}
		m := rapid.SampledFrom(ready).Draw(t, "module")
		if p.Waves && rapid.Bool().Draw(t, "next wave") {
			wave++
		}
		r := Run{Module: m, Layers: rapid.IntRange(1, left[m]).Draw(t, "of its layers"), Wave: wave}
		batch := w.tasks.Modules[m].Batch
		r.Ranks = drawSubset(t, devices, min(devices, batch))
		r.Samples = drawShares(t, batch, len(r.Ranks))
		p.Runs, left[m] = append(p.Runs, r), left[m]-r.Layers
	}
}

// drawSubset is one to most of so many ranks, rising.
func drawSubset(t *rapid.T, devices, most int) []int {
	ranks := make([]int, devices)
	for r := range ranks {
		ranks[r] = r
	}
	ranks = rapid.Permutation(ranks).Draw(t, "ranks")[:rapid.IntRange(1, most).Draw(t, "width")]
	slices.Sort(ranks)
	return ranks
}

// drawShares divides a batch among n ranks, a sample at least each.
func drawShares(t *rapid.T, batch, n int) []int {
	shares := slices.Repeat([]int{1}, n)
	for range batch - n {
		shares[rapid.IntRange(0, n-1).Draw(t, "one more")]++
	}
	return shares
}

var errMissing = errors.New("nobody measured it")
