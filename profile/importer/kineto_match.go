package importer

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// commCall is one rank's kernel of a collective.
type commCall struct {
	commKernel
	trace *commTrace
}

// commTrace is what collectives need to know of a trace once it was read.
type commTrace struct {
	*trace
	rank int64
}

// commGroup is a process group of a job: the kernels of each rank in the order
// in which they began.
type commGroup struct {
	key   string
	size  int
	ranks []*commTrace
	calls map[*commTrace][]*commCall
}

// commGroups collects process groups over traces.
type commGroups struct {
	machine *machine
	order   []*commGroup
	byKey   map[string]*commGroup
	skews   []float64 // s, of matched collectives
	waits   []float64 // s, the cost beside each
}

// add takes the collectives of a trace and frees the rest of it.
func (g *commGroups) add(t *trace) {
	t.ops, t.byID, t.byLaunch, t.commByID, t.threads, t.calls, t.args, t.lanes, t.loose = nil, nil, nil, nil, nil, nil, nil, nil, nil
	ct := &commTrace{trace: t, rank: t.head.rank}
	for _, k := range t.comms {
		reason := "a collective that nothing in the trace describes: launched before the recording began, by a graph or by batch_isend_irecv"
		if k.args != nil {
			reason = k.args.reason
		}
		if reason != "" {
			g.machine.sink.Drop(t.where(k.event), reason)
			continue
		}
		k.start += t.head.base
		c := g.group(t, k.args)
		if c.calls[ct] == nil {
			c.ranks = append(c.ranks, ct)
		}
		c.calls[ct] = append(c.calls[ct], &commCall{k, ct})
	}
	t.comms = nil
}

// group finds the process group of a collective. Traces of 2023 name none: all
// ranks are taken for one.
func (g *commGroups) group(t *trace, a *commArgs) *commGroup {
	size, name := a.group, a.key
	if a.annotated {
		size, name = cmp.Or(int(min(t.head.world, 1<<20)), g.machine.sink.Ranks), "world"
		g.machine.sink.Note("collectives without metadata are taken to be of all ranks: traces of 2023 do not name the group")
	}
	key := fmt.Sprintf("%d of %d: %s", size, t.head.world, name)
	c := g.byKey[key]
	if c == nil {
		c = &commGroup{key: key, size: size, calls: map[*commTrace][]*commCall{}}
		g.byKey[key] = c
		g.order = append(g.order, c)
	}
	return c
}

// report makes points of the groups whose ranks are all there. That they are is
// told by the group's size in the metadata, or by the job's where a trace of 2023
// has none, and by the ranks that the traces claim; never by their names.
func (g *commGroups) report(s *Sink) error {
	for _, c := range g.order {
		for _, calls := range c.calls {
			slices.SortStableFunc(calls, func(a, b *commCall) int { return cmp.Compare(a.start, b.start) })
		}
		if reason := c.incomplete(s); reason != "" {
			c.drop(s, reason)
			continue
		}
		if err := g.match(s, c); err != nil {
			return err
		}
	}
	if len(g.skews) > 0 {
		slices.Sort(g.skews)
		slices.Sort(g.waits)
		const note = "collectives: the shortest kernel of all ranks, which waits for nobody (median %[4]s of %[2]d); " +
			"the longest took %[1]s longer in the median and %[3]s at most"
		s.Note(fmt.Sprintf(note,
			units.Seconds(g.skews[len(g.skews)/2]), len(g.skews), units.Seconds(g.skews[len(g.skews)-1]), units.Seconds(g.waits[len(g.waits)/2])))
	}
	return nil
}

// rank is a trace's rank in the job, or in the group where only that is told;
// -1 where neither is.
func (c *commGroup) rank(t *commTrace) int64 {
	if t.rank >= 0 {
		return t.rank
	}
	return c.calls[t][0].args.rank
}

// incomplete says why the ranks of a group are not all there, or not told apart.
func (c *commGroup) incomplete(s *Sink) string {
	seen := map[int64]bool{}
	for _, t := range c.ranks {
		rank := c.rank(t)
		if rank < 0 {
			return "a collective of a trace that does not say its rank (distributedInfo)"
		}
		if seen[rank] {
			const flag = "rank %d of the same process group is in another trace too: import traces of several jobs, or of several times, in a call each"
			s.Flag(t.source.Name, fmt.Sprintf(flag, rank))
			return "a collective of which two traces claim to be one rank"
		}
		seen[rank] = true
	}
	switch {
	case c.size == 0:
		return "a collective whose number of ranks is not in the trace: say it with --ranks"
	case len(c.ranks) > c.size:
		return "a collective that more traces have than it has ranks"
	case len(c.ranks) < c.size:
		c.bounds(s)
		return "a rank's kernel of a collective waits for the others: give the traces of all ranks in one call"
	}
	return ""
}

// bounds notes what one rank alone shows: an upper bound, the shortest over all
// repetitions. It is no point, since it may be a thousand times the cost.
func (c *commGroup) bounds(s *Sink) {
	type size struct {
		kind  op.Kind
		bytes units.Bytes
	}
	least := map[size]float64{}
	var order []size
	for _, t := range c.ranks {
		for _, k := range c.calls[t] {
			at := size{k.args.kind, k.args.bytes(c.size)}
			if least[at] == 0 {
				order = append(order, at)
				least[at] = k.took
			}
			least[at] = min(least[at], k.took)
		}
	}
	for _, at := range order {
		const note = "%s of %d bytes over %d ranks takes at most %s: the shortest kernel of %d of the ranks, waiting for the others included; not a point"
		s.Note(fmt.Sprintf(note, at.kind, int64(at.bytes), c.size, units.Seconds(least[at]), len(c.ranks)))
	}
}

func (c *commGroup) drop(s *Sink, reason string) {
	for _, t := range c.ranks {
		for _, k := range c.calls[t] {
			s.Drop(t.where(k.event), reason)
		}
	}
}

// match takes the collectives of all ranks one by one.
func (g *commGroups) match(s *Sink, c *commGroup) error {
	slices.SortStableFunc(c.ranks, func(a, b *commTrace) int { return cmp.Compare(c.rank(a), c.rank(b)) })
	rows, exact := c.align()
	used := map[*commCall]bool{}
	for _, row := range rows {
		if err := g.point(s, c, row, exact); err != nil {
			return err
		}
		for _, k := range row {
			used[k] = true
		}
	}
	for _, t := range c.ranks {
		for _, k := range c.calls[t] {
			if !used[k] {
				s.Drop(t.where(k.event), notOnAll)
			}
		}
	}
	return nil
}

const notOnAll = "a collective that not every rank recorded"

// align lists the calls of all ranks of each collective: by the number that
// PyTorch gives them, which makes the match exact; else by their order, if all
// recorded equally many that fit; else by when they end.
func (c *commGroup) align() (rows [][]*commCall, exact bool) {
	if rows := c.numbered(); rows != nil {
		return rows, true
	}
	rows = c.inOrder()
	misfit := func(row []*commCall) bool { return !meet(row) || !alike(row) }
	if rows == nil || slices.ContainsFunc(rows, misfit) {
		if together := c.byEnds(); together != nil {
			return together, false
		}
	}
	return rows, false
}

// numbered matches by Seq; nil unless every call has one of its own.
func (c *commGroup) numbered() (rows [][]*commCall) {
	all := map[*commTrace]map[int64]*commCall{}
	for _, t := range c.ranks {
		all[t] = map[int64]*commCall{}
		for _, k := range c.calls[t] {
			if k.args.seq < 0 || all[t][k.args.seq] != nil {
				return nil
			}
			all[t][k.args.seq] = k
		}
	}
	for _, k := range c.calls[c.ranks[0]] {
		var row []*commCall
		for _, t := range c.ranks {
			if other := all[t][k.args.seq]; other != nil {
				row = append(row, other)
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// inOrder matches the k-th call of every rank; nil if their numbers differ.
func (c *commGroup) inOrder() (rows [][]*commCall) {
	first := c.calls[c.ranks[0]]
	for _, t := range c.ranks {
		if len(c.calls[t]) != len(first) {
			return nil
		}
	}
	for i := range first {
		var row []*commCall
		for _, t := range c.ranks {
			row = append(row, c.calls[t][i])
		}
		rows = append(rows, row)
	}
	return rows
}

// byEnds matches every call of the first rank with the one of each other that
// ends when it does: recordings need not begin at the same call. Rows that not
// every rank is in are left out; nil if there is no other.
func (c *commGroup) byEnds() (rows [][]*commCall) {
	next := map[*commTrace]int{}
	for _, k := range c.calls[c.ranks[0]] {
		row := []*commCall{k}
		for _, t := range c.ranks[1:] {
			calls := c.calls[t]
			for next[t] < len(calls) && calls[next[t]].end() < k.end()-clockSlack {
				next[t]++
			}
			for i := next[t]; i < len(calls) && calls[i].end() < k.end()+k.took*1e6+clockSlack; i++ {
				if pair := []*commCall{k, calls[i]}; alike(pair) && meet(pair) {
					row, next[t] = append(row, calls[i]), i+1
					break
				}
			}
		}
		if len(row) == len(c.ranks) {
			rows = append(rows, row)
		}
	}
	return rows
}

// alike says that all describe one collective.
func alike(row []*commCall) bool {
	return !slices.ContainsFunc(row, func(k *commCall) bool { return !k.args.alike(row[0].args) })
}

// clockSlack is how far the clocks of GPUs, as the profiler brings them to that
// of the host, may lie apart: ends of one collective were within 7 us on the
// eight GPUs of a node.
const clockSlack = 50 // us

// meet says that kernels may be those of one collective: the last begins before
// the first ends, and they end together, since none can go on without the
// others for longer than the collective itself takes.
func meet(row []*commCall) bool {
	lastStart, firstEnd, lastEnd, cost := row[0].start, row[0].end(), row[0].end(), row[0].took
	for _, k := range row {
		lastStart, cost = max(lastStart, k.start), min(cost, k.took)
		firstEnd, lastEnd = min(firstEnd, k.end()), max(lastEnd, k.end())
	}
	return lastStart < firstEnd+clockSlack && lastEnd-firstEnd < cost*1e6+clockSlack
}

func (k *commKernel) end() float64 { return k.start + k.took*1e6 }

// point hands over one collective: its cost is the shortest kernel, that of the
// rank that came last.
func (g *commGroups) point(s *Sink, c *commGroup, row []*commCall, exact bool) error {
	shape, reason := c.shape(row, exact)
	var group op.GroupType
	var err error
	if reason == "" {
		group, reason, err = g.signature(row)
	}
	if err != nil {
		return err
	}
	if reason != "" {
		for _, k := range row {
			s.Drop(k.trace.where(k.event), reason)
		}
		return nil
	}
	where := row[0].trace.where(row[0].event)
	least, most := row[0].took, row[0].took
	for _, k := range row {
		least, most = min(least, k.took), max(most, k.took)
	}
	g.skews, g.waits = append(g.skews, most-least), append(g.waits, least)
	s.Point(where, s.Group(group), shape, least)
	return nil
}

// shape is the op of a collective as all its ranks describe it.
func (c *commGroup) shape(row []*commCall, exact bool) (op.Shape, string) {
	if len(row) != len(c.ranks) {
		return nil, notOnAll
	}
	if !alike(row) {
		return nil, "the ranks disagree on what a collective is: their recordings do not begin at the same one"
	}
	var args []*commArgs
	for _, k := range row {
		if k.args.contradicts(c.size) {
			return nil, "a collective's input and output do not fit its number of ranks"
		}
		args = append(args, k.args)
	}
	if !exact && !meet(row) {
		return nil, "kernels of the ranks that do not end together: not one collective, or clocks that differ"
	}
	if a := args[0]; a.kind != op.KindAllToAll {
		return op.OfMessage(a.kind, op.Message{Group: c.size, Bytes: a.bytes(c.size), DType: a.dtype}), ""
	}
	return exchange(args)
}

// signature is the group of the ranks of a collective. A trace tells neither
// nodes nor links: see spread, and the model's fabric.
func (g *commGroups) signature(row []*commCall) (group op.GroupType, reason string, err error) {
	s, link, perNode := g.machine.sink, "", 0
	var members []op.Member
	for _, k := range row {
		d, reason, err := g.machine.device(k.trace.trace, k.device, k.trace.commStack())
		if err != nil || reason != "" {
			return group, reason, err
		}
		s.Device(d)
		if i := slices.IndexFunc(members, func(m op.Member) bool { return m.Device == d.Name }); i >= 0 {
			members[i].Count++
		} else {
			members = append(members, op.Member{Device: d.Name, Count: 1})
		}
		if m, ok := s.model(d.Model); ok {
			link, perNode = m.Fabric, m.PerNode
		}
	}
	nodes := spread(row, s.Nodes, perNode)
	link = cmp.Or(s.Link, link)
	switch {
	case s.Nodes == 0 && (nodes > 1 || perNode > 0 && len(row) > perNode):
		return group, "a collective over ranks that a node of this model does not hold together: say on how many nodes the job runs with --nodes", nil
	case link == "":
		return group, "a collective over links of an unknown class: say it with --link", nil
	}
	if s.Nodes > 1 {
		s.Note(fmt.Sprintf("a trace does not tell nodes: the job's ranks are taken to fill %d in order", s.Nodes))
	} else {
		s.Note("a trace does not tell nodes: the ranks of a group are taken to sit on 1")
	}
	return op.NewGroupType(members, nodes, link), "", nil
}

// spread is how many nodes the ranks of a collective sit on. A job's ranks fill its
// nodes in order, as launchers place them unless told otherwise: those of a group
// may be all on one node, or each on another. jobNodes is 0 where nobody says it;
// a node then holds as many as the model's do.
func spread(row []*commCall, jobNodes, perNode int) int {
	filled := int64(perNode)
	if jobNodes > 0 {
		filled = 0
		if world := row[0].trace.head.world; world%int64(jobNodes) == 0 {
			filled = world / int64(jobNodes)
		}
	}
	nodes := map[int64]bool{}
	for _, k := range row {
		if filled < 1 || k.trace.rank < 0 {
			return max(1, jobNodes)
		}
		nodes[k.trace.rank/filled] = true
	}
	return len(nodes)
}
