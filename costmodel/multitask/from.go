package multitask

import (
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// laws are prices by the fitted laws of a cluster.
type laws struct {
	q       *costmodel.Predictor
	cluster costmodel.Cluster
	tasks   *Tasks
	pools   []Pool
	layers  []*costmodel.Layers // by module; equal layers share one
	jobs    []costmodel.Job     // by module, of one layer's shape
	room    []units.Bytes       // by pool
	o       Options
}

// Options are how modules are trained.
type Options struct {
	DType op.DType `json:"dtype,omitzero"`
	// Recompute is "full" where only what goes into a layer is kept for its backward
	// pass.
	Recompute costmodel.Recompute `json:"recompute,omitzero"`
	// MemoryReserve is the part of every device's memory that plans leave free, as for a
	// plan of one sequence.
	MemoryReserve float64 `json:"memory_reserve_ratio,omitzero"`
}

// Validate says what of them is none.
func (o Options) Validate() error {
	switch {
	case !o.DType.Computes():
		return fmt.Errorf("dtype: %q: want f32, bf16, f16 or fp8", string(o.DType))
	case o.Recompute != costmodel.RecomputeNone && o.Recompute != costmodel.RecomputeFull:
		return fmt.Errorf("recompute: %q: want %s or %s", string(o.Recompute), costmodel.RecomputeNone, costmodel.RecomputeFull)
	case !(o.MemoryReserve >= 0 && o.MemoryReserve <= costmodel.MostReserve):
		return fmt.Errorf("memory_reserve_ratio: %v: want 0 to %v", o.MemoryReserve, costmodel.MostReserve)
	}
	return nil
}

// FromLaws prices tasks, whose modules have shapes, by the laws of a predictor, on a
// cluster.
//
// Errors: an invalid cluster; a device that the profile lacks; a missing law of one device,
// as *costmodel.MissingLawError. What is missing of a group of devices shows when it is
// asked for: see Costs.Missing.
func FromLaws(q *costmodel.Predictor, t *Tasks, c costmodel.Cluster, o Options) (*Costs, error) {
	l := &laws{q: q, cluster: c, tasks: t, o: o}
	known := map[Shape]*costmodel.Layers{}
	for _, m := range t.Modules {
		if m.Shape == nil {
			return nil, fmt.Errorf("module %s: has a curve and no shape: laws need the shape of its layers", m.Name)
		}
		job := costmodel.Job{Model: m.Model(), Cluster: c, DType: o.DType, Recompute: o.Recompute, MemoryReserve: o.MemoryReserve}
		of, ok := known[*m.Shape]
		if !ok {
			var err error
			if len(l.layers) == 0 {
				of, err = costmodel.NewLayers(q, job)
			} else {
				of, err = l.layers[0].Of(job.Model)
			}
			if err != nil {
				return nil, err
			}
			known[*m.Shape] = of
		}
		l.layers, l.jobs = append(l.layers, of), append(l.jobs, job)
	}
	costs, err := newCosts(t, c.Ranks(), l)
	if err != nil {
		return nil, err
	}
	costs.rates = q.NodeRates(c)
	l.pools = costs.Pools
	for _, pool := range l.pools {
		l.room = append(l.room, q.DeviceMemory(l.jobs[0], pool.Device).Capacity)
	}
	for m := range t.Modules { // no device lacks a law
		for p := range costs.Pools {
			if costs.Alone(m, p, 1); costs.err != nil {
				return nil, costs.err
			}
		}
	}
	return costs, nil
}

func (l *laws) pass(module, pool, samples int) (pass, error) {
	s := l.tasks.Modules[module].Shape
	forward, backward, err := l.layers[module].Passes(l.pools[pool].Device, s.Mask(), costmodel.Documents{Tokens: s.SeqLen, Count: samples})
	return pass{forward, backward}, err
}

func (l *laws) replayed(module, pool, samples int) (x layerReplay, err error) {
	s := l.tasks.Modules[module].Shape
	x.again = l.o.Recompute == costmodel.RecomputeFull
	x.forward, x.backward, err = l.layers[module].Replayed(l.pools[pool].Device, s.Mask(), costmodel.Documents{Tokens: s.SeqLen, Count: samples})
	return x, err
}

// memory has parameters and gradients in the precision of the layers, and 12 bytes (8 in
// float32) of the optimizer for each parameter, as costmodel has them of one sequence.
func (l *laws) memory(module, n, samples int) layerMemory {
	j, s := l.jobs[module], l.tasks.Modules[module].Shape
	params, e := units.Bytes(j.Model.LayerParams()), l.o.DType.Size()
	tokens := int64(samples) * int64(s.SeqLen)
	m := layerMemory{states: 2*params*e + ((16-2*e)*params+units.Bytes(n)-1)/units.Bytes(n), kept: j.LayerActivations().Times(tokens)}
	if l.o.Recompute == costmodel.RecomputeFull {
		m.kept, m.again = (units.Bytes(s.Hidden) * e).Times(tokens), m.kept
	}
	return m
}

func (l *laws) capacity(pool int) units.Bytes { return l.room[pool] }

func (l *laws) brief(module, pool, samples int, ranks []int, layers int) (*costmodel.Step, error) {
	s := l.tasks.Modules[module].Shape
	return l.layers[module].Brief(l.pools[pool].Device, s.Mask(), costmodel.Documents{Tokens: s.SeqLen, Count: samples}, ranks, layers)
}

func (l *laws) warnings() []string {
	var all []string
	for _, of := range l.layers {
		for _, w := range of.Warnings() {
			if !slices.Contains(all, w) {
				all = append(all, w)
			}
		}
	}
	return all
}

func (l *laws) exchange(module int, ranks []int) (units.Seconds, error) {
	return l.layers[module].Exchange(op.KindAllReduce, ranks)
}

func (l *laws) send(from, to int, bytes units.Bytes) (units.Seconds, error) {
	return l.layers[0].Send(from, to, bytes)
}

// result is the activations of a sample.
func (l *laws) result(module int, _ bool) units.Bytes {
	s := l.tasks.Modules[module].Shape
	return units.Bytes(s.SeqLen) * units.Bytes(s.Hidden) * l.o.DType.Size()
}

// curves are prices by published curves, which know of one type of devices, and of no
// links between them.
type curves struct {
	tasks   *Tasks
	cluster costmodel.Cluster
}

// Published prices tasks, whose modules have curves, on the devices of a cluster, which are
// all of one type.
//
// Errors: an invalid cluster, devices of several types, a module without a curve.
func Published(t *Tasks, c costmodel.Cluster) (*Costs, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	for _, m := range t.Modules {
		if m.Curve == nil {
			return nil, fmt.Errorf("module %s: has a shape and no curve: its layers are priced by laws", m.Name)
		}
	}
	costs, err := newCosts(t, c.Ranks(), curves{t, c})
	if err == nil && len(costs.Pools) > 1 {
		err = fmt.Errorf("cluster: %s and %s: curves are of one device type: name one, or state shapes, which laws price on any", costs.Pools[0].Device, costs.Pools[1].Device)
	}
	return costs, err
}

func (c curves) pass(module, _, samples int) (pass, error) {
	return pass{forward: c.tasks.Modules[module].Curve.Time(1, samples)}, nil
}

func (c curves) replayed(module, _, _ int) (layerReplay, error) {
	return layerReplay{}, fmt.Errorf("module %s: has a curve and no shape: a replay runs layers of a shape", c.tasks.Modules[module].Name)
}

func (c curves) exchange(module int, _ []int) (units.Seconds, error) {
	return c.tasks.Modules[module].Curve.Sync, nil
}

func (curves) send(int, int, units.Bytes) (units.Seconds, error) { return 0, nil }

func (curves) result(int, bool) units.Bytes { return 0 }

func (curves) memory(int, int, int) layerMemory { return layerMemory{} }

func (curves) capacity(int) units.Bytes { return 0 }

func (curves) brief(int, int, int, []int, int) (*costmodel.Step, error) { return nil, nil }

func (curves) warnings() []string { return nil }
