package pipeline

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// laws are prices by the fitted laws of a cluster.
type laws struct {
	q       *costmodel.Predictor
	job     costmodel.Job
	ranks   []costmodel.Rank
	kinds   []string // by rank: what it has in common with others in its price
	layers  *costmodel.Layers
	packers map[string]*costmodel.Packer // by like
	// The same where each rank has a network card of its own, which plans are not priced by.
	ownCards map[string]*costmodel.Packer
	memory   map[string]costmodel.DeviceMemory
	rates    map[string]*rates // by device type
}

// FromLaws prices a batch by the laws of a predictor, for the cluster and model of a job. It
// ignores the job's SeqLen, Recompute and Accumulate. The job's ZeRO stage is of the ranks of
// a stage; embeddings and output projection are whole on each rank that has them, with the
// optimizer's state sharded. Embeddings that are the output projection, too, are on both ends of a
// pipeline, which add up their gradients (see Costs.Tied).
//
// Errors: an invalid job, a device that the profile lacks, a length below one token or beyond
// the model's longest. What laws are missing shows when they are asked for: see Costs.Missing.
func FromLaws(q *costmodel.Predictor, j costmodel.Job, lengths []units.Tokens) (*Costs, error) {
	if len(lengths) > 0 {
		j.SeqLen = slices.Max(lengths)
	}
	if err := j.Validate(); err != nil {
		return nil, err
	}
	layers, err := costmodel.NewLayers(q, j)
	if err != nil {
		return nil, err
	}
	l := &laws{q: q, job: j, ranks: j.Cluster.Ranks(), layers: layers, packers: map[string]*costmodel.Packer{}, ownCards: map[string]*costmodel.Packer{}, memory: map[string]costmodel.DeviceMemory{}, rates: map[string]*rates{}}
	for r, x := range l.ranks {
		l.memory[x.Device] = q.DeviceMemory(j, x.Device)
		l.kinds = append(l.kinds, l.like([]int{r}))
	}
	return newCosts(lengths, j.Model.Layers, l.ranks, l)
}

func (l *laws) like(ranks []int) string {
	var b strings.Builder
	for i, r := range ranks {
		x := l.ranks[r]
		if i == 0 || l.ranks[ranks[i-1]].Node != x.Node {
			n := l.job.Cluster.Nodes[x.Node]
			fmt.Fprintf(&b, "|%q %d %d:", n.Link, n.NICs, n.Size())
		}
		fmt.Fprintf(&b, "%q", x.Device)
	}
	return b.String()
}

// alone is the cluster of some ranks, whose nodes have their share of the network cards.
func (l *laws) alone(ranks []int) costmodel.Cluster {
	c := costmodel.Cluster{Network: l.job.Cluster.Network, Links: l.job.Cluster.Links}
	for i, r := range ranks {
		x := l.ranks[r]
		if i == 0 || l.ranks[ranks[i-1]].Node != x.Node {
			n := l.job.Cluster.Nodes[x.Node]
			n.Devices = nil
			c.Nodes = append(c.Nodes, n)
		}
		n := &c.Nodes[len(c.Nodes)-1]
		if last := len(n.Devices) - 1; last >= 0 && n.Devices[last].Device == x.Device {
			n.Devices[last].Count++
			continue
		}
		n.Devices = append(n.Devices, op.Member{Device: x.Device, Count: 1})
	}
	for i, r := 0, 0; i < len(c.Nodes); i++ {
		n := &c.Nodes[i]
		if n.NICs > 0 {
			n.NICs = max(1, n.NICs*n.Size()/l.job.Cluster.Nodes[l.ranks[ranks[r]].Node].Size())
		}
		r += n.Size()
	}
	return c
}

// group is ranks of a stage with as many heads each, and their shares.
func (l *laws) group(n int) (costmodel.Group, []float64) {
	var g costmodel.Group
	for i := range n {
		g = append(g, costmodel.HeadShare{Rank: i, QHeads: l.job.Model.QHeads / n})
	}
	return g, slices.Repeat([]float64{1 / float64(n)}, n)
}

func (l *laws) packer(ranks []int) (*costmodel.Packer, error) { return l.packerOf(ranks, false) }

// packerOf is that of ranks which share their nodes' network cards, or each have one.
func (l *laws) packerOf(ranks []int, ownCards bool) (*costmodel.Packer, error) {
	packers, k := l.packers, l.like(ranks)
	if ownCards {
		packers = l.ownCards
	}
	if p, ok := packers[k]; ok {
		return p, nil
	}
	j := l.job
	j.Cluster = l.alone(ranks)
	for i := range j.Cluster.Nodes {
		if ownCards {
			j.Cluster.Nodes[i].NICs = 0
		}
	}
	p, err := costmodel.NewPacker(l.q, j)
	if err != nil {
		return nil, err
	}
	packers[k] = p
	return p, nil
}

func (l *laws) work(ranks []int, x costmodel.Chunk) (Work, error) {
	p, err := l.packer(ranks)
	if err != nil {
		return Work{}, err
	}
	group, shares := l.group(len(ranks))
	t, err := p.Chunk(group, shares, x)
	if err != nil {
		return Work{}, err
	}
	w := Work{Forward: t.Forward, Again: t.Forward, Backward: t.Backward, Loss: t.Loss}
	var forward, backward units.Seconds
	for _, e := range l.job.Exchanges() {
		if !e.When.EachMicroBatch() {
			continue
		}
		took, err := l.layers.Exchange(e.Kind, ranks)
		if err != nil {
			return Work{}, err
		}
		if e.When == costmodel.InForward {
			forward += took
		} else {
			backward += took
		}
	}
	w.Forward += l.open(forward, t.Forward, t.ForwardMoving)
	w.Backward += l.open(backward, t.Backward, t.BackwardMoving)
	return w, nil
}

// open is what a layer does not hide of the exchanges beside it: all use the same ports.
func (l *laws) open(took, layer, moving units.Seconds) units.Seconds {
	if !l.job.OverlapZero {
		return took
	}
	return min(took, max(0, moving+took-layer))
}

func (l *laws) send(from, to []int, tokens units.Tokens) (slowest units.Seconds, err error) {
	fewest := units.Tokens(min(len(from), len(to)))
	bytes := float64((tokens+fewest-1)/fewest) * float64(l.job.Model.Hidden) * float64(l.job.DType.Size())
	for _, x := range l.links(from, to) {
		t, missing := l.layers.Send(x[0], x[1], units.BytesOf(math.Ceil(bytes*l.crowd(x))))
		slowest, err = max(slowest, t), cmp.Or(err, missing)
	}
	return slowest, err
}

// links are what some ranks send to others over.
func (l *laws) links(from, to []int) [][2]int {
	node := func(rank int) int { return l.ranks[rank].Node }
	return links(from, to, node, func(rank int) string { return l.kinds[rank] })
}

// crowd is how many ranks share a network card on either end of what one sends to another: all
// of a node are taken to send at the same time.
func (l *laws) crowd(x [2]int) float64 {
	if l.ranks[x[0]].Node == l.ranks[x[1]].Node {
		return 1
	}
	return max(l.crowding(x[0]), l.crowding(x[1]))
}

// crowding is how many ranks of a rank's node share a network card.
func (l *laws) crowding(rank int) float64 {
	n := l.job.Cluster.Nodes[l.ranks[rank].Node]
	if n.NICs == 0 {
		return 1
	}
	return max(1, float64(n.Size())/float64(n.NICs))
}

// finish is the exchanges that are left to the end of the step, behind nothing, or have nothing
// to hide behind: the first layer that is gathered, the last that is reduced; and the optimizer
// on a rank's share of the parameters.
func (l *laws) finish(ranks []int, layers int, first, last bool) (Finish, error) {
	m, e := l.job.Model, l.job.DType.Size()
	n := int64(len(ranks))
	tables := int64(m.StageTables(first, last)) * m.TableParams()
	var out Finish
	var missing error
	add := func(part *units.Seconds, times units.Seconds, t units.Seconds, err error) {
		*part, missing = *part+times*t, cmp.Or(missing, err)
	}
	if n > 1 {
		for _, x := range l.job.Exchanges() {
			times := units.Seconds(layers)
			if x.When.EachMicroBatch() {
				if !l.job.OverlapZero {
					continue
				}
				times = 1
			}
			part := &out.Gradients
			if x.When == costmodel.AtTheEnd {
				part = &out.Parameters
			}
			t, err := l.layers.Exchange(x.Kind, ranks)
			add(part, times, t, err)
		}
		if tables > 0 {
			t, err := l.layers.ExchangeOf(op.KindReduceScatter, ranks, units.Bytes(tables)*e)
			add(&out.Gradients, 1, t, err)
			t, err = l.layers.ExchangeOf(op.KindAllGather, ranks, units.Bytes(tables)*e)
			add(&out.Parameters, 1, t, err)
		}
	}
	params := int64(layers) * m.LayerParams()
	if l.job.Zero == costmodel.Zero0 {
		params += (tables + n - 1) / n
	} else {
		params = (params + tables + n - 1) / n
	}
	slowest := units.Seconds(0)
	for _, device := range l.devices(ranks) {
		t, err := l.layers.Update(device, params)
		slowest, missing = max(slowest, t), cmp.Or(missing, err)
	}
	out.Parameters += slowest
	return out, missing
}

// tied is an all-reduce between each rank of the first stage and the one of the last that updates
// the same part of the table, as in Megatron-LM, but of that part alone: no other of the gradient
// that a rank has is added up over its stage. The fewer ranks of the two have the larger parts.
// Where nobody measured one, its two halves stand for it, which sharded states ask for anyway.
func (l *laws) tied(first, last []int) (units.Seconds, error) {
	if !l.job.Model.TiedEmbeddings {
		return 0, nil
	}
	t, _, err := l.slowestTied(first, last)
	return t, err
}

// slowestTied is the one of these that takes longest, and its ranks.
func (l *laws) slowestTied(first, last []int) (most units.Seconds, of [2]int, err error) {
	for i, x := range l.links(first, last) {
		t, missing := l.addedUp(x, l.tiedPart(first, last, x))
		if i == 0 || t > most {
			most, of = t, x
		}
		err = cmp.Or(err, missing)
	}
	return most, of, err
}

// addedUp is what two ranks take to add up bytes.
func (l *laws) addedUp(x [2]int, bytes units.Bytes) (t units.Seconds, missing error) {
	if t, missing = l.layers.ExchangeOf(op.KindAllReduce, x[:], bytes); missing == nil {
		return t, nil
	}
	t = 0
	for _, half := range allReduceHalves() {
		more, err := l.layers.ExchangeOf(half, x[:], bytes)
		if err != nil {
			return 0, missing
		}
		t += more
	}
	return t, nil
}

func allReduceHalves() []op.Kind { return []op.Kind{op.KindReduceScatter, op.KindAllGather} }

func (l *laws) tiedPart(first, last []int, x [2]int) units.Bytes {
	fewest := int64(min(len(first), len(last)))
	part := (l.job.Model.TableParams() + fewest - 1) / fewest
	return units.BytesOf(math.Ceil(float64(part) * float64(l.job.DType.Size()) * l.crowd(x)))
}

func (l *laws) briefTied(first, last []int) (*costmodel.Step, error) {
	_, pair, missing := l.slowestTied(first, last)
	if missing != nil {
		return nil, missing
	}
	bytes := l.tiedPart(first, last, pair)
	whole, missing := l.layers.BriefExchange(op.KindAllReduce, pair[:], bytes)
	if missing == nil {
		return whole, nil
	}
	var halves []*costmodel.Step
	for _, half := range allReduceHalves() {
		step, err := l.layers.BriefExchange(half, pair[:], bytes)
		if err != nil {
			return nil, missing
		}
		halves = append(halves, step)
	}
	return costmodel.InTurn(halves...), nil
}

// devices are the device types of ranks.
func (l *laws) devices(ranks []int) []string {
	var all []string
	for _, r := range ranks {
		if d := l.ranks[r].Device; !slices.Contains(all, d) {
			all = append(all, d)
		}
	}
	return all
}

func (l *laws) held(ranks []int, x costmodel.Chunk) costmodel.ChunkBytes {
	var most costmodel.ChunkBytes
	heads := l.job.Model.QHeads / len(ranks)
	kv := 0 // the first head of the rank that needs most KV heads
	for i := range ranks {
		if l.job.Model.KVHeadsOf(i*heads, heads) > l.job.Model.KVHeadsOf(kv, heads) {
			kv = i * heads
		}
	}
	for _, device := range l.devices(ranks) {
		b := l.job.ChunkMemory(x, 1/float64(len(ranks)), kv, heads, len(ranks), l.memory[device])
		most = costmodel.ChunkBytes{
			Kept: max(most.Kept, b.Kept), Again: max(most.Again, b.Again), Gradients: max(most.Gradients, b.Gradients),
			Transient: max(most.Transient, b.Transient), Logits: max(most.Logits, b.Logits),
		}
	}
	return most
}

func (l *laws) states(ranks []int, layers int, first, last bool) units.Bytes {
	return l.job.StageStates(layers, len(ranks), l.job.Model.StageTables(first, last))
}

func (l *laws) capacity(ranks []int) units.Bytes {
	least := units.Bytes(0)
	for _, device := range l.devices(ranks) {
		if c := l.memory[device].Capacity; least == 0 || c < least {
			least = c
		}
	}
	return units.BytesOf(costmodel.Usable * float64(least))
}

func (l *laws) fits(ranks []int) error {
	if l.job.Model.QHeads%len(ranks) != 0 {
		return fmt.Errorf("a stage of %d devices: the model's %d query heads are not divisible by that", len(ranks), l.job.Model.QHeads)
	}
	return nil
}

func (l *laws) brief(ranks []int, x costmodel.Chunk, times costmodel.ChunkTimes) (*costmodel.Step, error) {
	p, err := l.packer(ranks)
	if err != nil {
		return nil, err
	}
	group, shares := l.group(len(ranks))
	return p.BriefChunk(group, shares, x, times)
}

func (l *laws) replayed(ranks []int, x costmodel.Chunk, w costmodel.ChunkReplay) (*costmodel.Replayed, error) {
	p, err := l.packer(ranks)
	if err != nil {
		return nil, err
	}
	group, shares := l.group(len(ranks))
	return p.ReplayedChunk(group, shares, x, w)
}

func (l *laws) warnings() []string {
	keys := slices.Sorted(maps.Keys(l.packers))
	packers := make([]*costmodel.Packer, len(keys))
	for i, k := range keys {
		packers[i] = l.packers[k]
	}
	return costmodel.WarningsOf(l.layers, packers)
}

// inOrder goes by what a layer of half of the longest sequence takes. What nobody measured counts
// as nothing: it shows where a plan needs it.
func (l *laws) inOrder(lengths []units.Tokens) (*Costs, []int) {
	layers, err := costmodel.NewLayers(l.q, l.job)
	if err != nil {
		panic(err) // which FromLaws would have had
	}
	asks := *l
	asks.layers = layers // its warnings are of no plan
	m, half, nodes := l.job.Model, max(1, l.job.SeqLen/2), make([][]int, len(l.job.Cluster.Nodes))
	paces := map[string]costmodel.DevicePace{}
	for r, x := range l.ranks {
		nodes[x.Node] = append(nodes[x.Node], r)
		if _, known := paces[x.Device]; !known {
			forward, backward, _ := layers.Linear(x.Device, half)
			there, back, _ := layers.Attention(x.Device, m.QHeads, m.KVHeads, 0, half, 1)
			paces[x.Device] = costmodel.DevicePace{Linear: float64(forward + backward), Attention: float64(there + back), Memory: l.memory[x.Device].Capacity}
		}
	}
	j, listed := l.job, []int(nil)
	j.Cluster, listed = l.job.Cluster.Ordered(paces, func(node int) float64 {
		if len(nodes[node]) < 2 {
			return 0
		}
		t, _ := asks.send(nodes[node], nodes[node], half)
		return float64(t)
	})
	if listed == nil {
		return nil, nil
	}
	c, err := FromLaws(l.q, j, lengths)
	if err != nil {
		panic(fmt.Sprintf("the same devices have no prices in another order: %v", err)) // which FromLaws had
	}
	return c, listed
}
