package importer

import "slices"

// launch is a call of the CUDA or HIP runtime that names no op: it belongs to
// the innermost op around it.
type launch struct {
	correlation int64
	thread      int
	at          float64
}

// launchedBy finds the op of every launch inside a known one. The ops that run inside
// those and are none of interest, some four to each, count only where a launch that names
// no op lies in one. So they are looked for when all such launches are known, in a pass of
// their own: a trace whose launches name their ops, as those since 2024 do, has none to keep.
func (t *trace) launchedBy() error {
	if _, _, err := scanTrace(t.source, t.launched); err != nil || len(t.launches) == 0 {
		return err
	}
	t.moments = make([][]float64, len(t.threads))
	for _, l := range t.launches {
		t.moments[l.thread] = append(t.moments[l.thread], l.at)
	}
	for _, m := range t.moments {
		slices.Sort(m)
	}
	if _, _, err := scanTrace(t.source, t.inside); err != nil {
		return err
	}
	t.nest()
	t.join()
	return nil
}

// launched is the second pass: launches, by the op that they name or by their time.
func (t *trace) launched(e *traceEvent) {
	correlation, ok := e.whole(fieldCorrelation)
	if category(e) != "launch" || !ok {
		return
	}
	id, named := e.whole(fieldExternal)
	named = named && id != 0 && id != correlation
	i, known := t.byID[id]
	if !named {
		i = t.aroundEvent(e)
		known = true
	}
	switch {
	case !known || i < 0:
	case len(t.byLaunch)+len(t.launches) >= maxOps:
		t.full = true
	case named:
		t.byLaunch[correlation] = i
	default:
		at, _ := e.float(fieldTs)
		t.launches = append(t.launches, launch{correlation, t.threads[threadKey(e)], at})
	}
}

// inside is the pass after it: ops that run inside the known ones and launched kernels of
// their own. Those in which no launch lies are around none, and none is the better told for
// them.
func (t *trace) inside(e *traceEvent) {
	if category(e) != "op" {
		return
	}
	if i := t.aroundEvent(e); i >= 0 && t.ops[i].call != nil && t.runsLaunch(e) && t.callOf(e) == nil && t.commOf(e) == nil {
		t.add(e, nil, nil)
	}
}

// runsLaunch says whether a launch that names no op lies within an event of a known thread.
func (t *trace) runsLaunch(e *traceEvent) bool {
	from, _ := e.float(fieldTs)
	took, _ := e.float(fieldDur)
	moments := t.moments[t.threads[threadKey(e)]]
	n, _ := slices.BinarySearch(moments, from)
	return n < len(moments) && moments[n] <= from+max(0, took)
}

// aroundEvent is the innermost known op at the start of an event of its thread.
func (t *trace) aroundEvent(e *traceEvent) int {
	thread, ok := t.threads[threadKey(e)]
	at, timed := e.float(fieldTs)
	if !ok || !timed {
		return opNone
	}
	return t.around(thread, at)
}

// join gives every launch without an id the innermost op around it.
func (t *trace) join() {
	for _, l := range t.launches {
		if i := t.around(l.thread, l.at); i >= 0 {
			t.byLaunch[l.correlation] = i
		}
	}
	t.launches, t.moments = nil, nil
}
