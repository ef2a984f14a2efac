package importer

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// How a trace is read
//
// A trace (a Chrome trace as Kineto writes it) lists what the CPU did (ops, and
// launches of kernels) and what the GPU did (kernels) as unrelated events in no
// order. What a kernel computed is known to its op alone: the arguments that
// record_shapes kept. A kernel finds its op in one of four ways, tried in this
// order:
//
//  1. Both have the same "External id" (since 2024).
//  2. The launch has the kernel's "correlation" and the op's id: builds that
//     leave the id out of the kernel.
//  3. The launch lies within the op, on its thread: builds of 2022 and 2023,
//     whose kernels and launches have their correlation for an id, which equals
//     some op's by accident only. The innermost op counts.
//  4. None: it was launched before the recording began, or by a graph. It is
//     left out. Kernels of equal name, grid and block have equal shapes as a
//     rule, but such a guess would only repeat a shape that is measured anyway.
//
// Attention is told by the op, not by the kernel: fused element-wise kernels are
// named after the attention that they follow. The kernel's name says only which
// implementation ran, which is an axis of the op.
//
// A kernel of a collective lasts from when its rank arrives to when all have
// done their part, so its time on one rank says little: on eight GPUs that
// recorded one all_to_all it was 10 us to 7.6 ms, and every one ended within
// 2 us of the others. The rank that arrives last waits for nobody. So the cost is
// the shortest kernel over all ranks, and a trace of some ranks gives no points
// but an upper bound, which a note states.

func kinetoFormat() Format {
	return Format{
		Name: "kineto",
		Doc:  "traces of the PyTorch profiler, plain or gzipped: attention and linear layers with their shapes; collectives where the traces of all ranks are given",
		Read: readKineto, gzipped: true,
	}
}

// readKineto reads traces one after another and keeps of each what collectives
// of other ranks are matched with.
//
// Format and meaning: github.com/pytorch/kineto, and the profiler of PyTorch,
// which writes the args.
func readKineto(s *Sink, sources []Source) error {
	m := &machine{sink: s, found: map[string]Model{}, refused: map[string]string{}}
	groups := &commGroups{machine: m, byKey: map[string]*commGroup{}}
	for _, src := range sources {
		t, err := readTrace(src)
		if err != nil {
			return err
		}
		if err := t.report(s, m); err != nil {
			return err
		}
		groups.add(t)
	}
	return groups.report(s)
}

// machine names the devices of traces.
type machine struct {
	sink    *Sink
	found   map[string]Model
	refused map[string]string
	stands  string // the name that --device stands for
}

// device is the type of a trace's GPU with a software stack. It is asked for
// only where there is a point, so that a trace without any needs no known GPU.
//
// reason says why the kernels of this one are no points of the model. The error
// says that the model is not known.
func (m *machine) device(t *trace, id int64, stack string) (d op.DeviceType, reason string, err error) {
	gpu, told := t.gpu(id)
	if !told {
		return d, "kernel of a device that the trace does not name, with others of several models", nil
	}
	stack = cmp.Or(stackOf(m.sink.Stack), stack)
	key := fmt.Sprintf("%s %d", gpu.name, gpu.units)
	model, ok := m.found[key]
	if !ok {
		if model, err = m.model(t, gpu); err != nil {
			return d, "", err
		}
		if gpu.units > 0 && model.Parallel > 0 && gpu.units != int64(model.Parallel) {
			m.refused[key] = "the trace's GPU has another number of multiprocessors than its model: a slice of it, or another model (name it with --device)"
			m.sink.Flag(t.source.Name, fmt.Sprintf("the GPU has %d multiprocessors, %s has %d: its rows are left out", gpu.units, model.Name, model.Parallel))
		}
		m.found[key] = model
	}
	return model.Of(stack), m.refused[key], nil
}

// model finds the model by the trace's name for it, else by the --device given.
func (m *machine) model(t *trace, gpu traceDevice) (Model, error) {
	given, asked := m.sink.model(m.sink.Options.Device)
	model, ok := m.sink.model(gpu.name)
	switch {
	case ok:
		m.sink.besides(t.source.Name, model)
	case asked && m.stands != "" && m.stands != gpu.name:
		return model, fmt.Errorf("%s: --device %s cannot stand for both %q and %q; import them apart", t.source.Name, given.Name, m.stands, gpu.name)
	case asked:
		m.stands = gpu.name
		return given, nil
	case m.sink.Options.Device != "":
		return model, m.sink.unknown(m.sink.Options.Device)
	case gpu.name == "":
		why := fmt.Sprintf("%s: names no GPU (deviceProperties): say which with --device", t.source.Name)
		if t.torn != "" { // some builds write the GPUs behind the events
			why += "; " + t.torn
		}
		return model, errors.New(why)
	default:
		return model, fmt.Errorf("%s: %w", t.source.Name, m.sink.unknown(gpu.name))
	}
	return model, nil
}

// gpu is the device of an id, or the only model that the trace names: processes
// number the GPUs they see in their own way.
func (t *trace) gpu(id int64) (traceDevice, bool) {
	if d, ok := t.head.devices[id]; ok {
		return d, true
	}
	var only traceDevice
	first := true
	for _, d := range t.head.devices {
		if !first && d != only {
			return traceDevice{}, false
		}
		only, first = d, false
	}
	return only, true
}

// commStack names the library of collectives.
func (t *trace) commStack() string {
	name := "nccl"
	if t.head.hip > 0 {
		name = "rccl"
	}
	if v := t.head.nccl; v != "" && strings.Trim(v, "0123456789.") == "" && len(v) < 16 {
		name += "-" + v
	}
	return name
}
