package solver

import (
	"fmt"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// MemoryError says that a layout does not fit one of its devices.
type MemoryError struct {
	Rank      int
	Place     string // rank, device type and node in words
	Component string // the largest: states, activations, transient or logits
	Memory    costmodel.Memory
}

// Error names the rank, the component that weighs most and the way out.
func (e *MemoryError) Error() string {
	var parts []string
	for _, c := range components(e.Memory) {
		parts = append(parts, fmt.Sprintf("%s %v", c.name, c.bytes))
	}
	return fmt.Sprintf("%s would need %v of the usable %v (%v x %v): %s; %s is the largest part",
		e.Place, e.Memory.Peak(), usable(e.Memory.Capacity), costmodel.Usable, e.Memory.Capacity, strings.Join(parts, ", "), e.Component)
}

func usable(capacity units.Bytes) units.Bytes {
	return units.Bytes(costmodel.Usable * float64(capacity))
}

type component struct {
	name  string
	bytes units.Bytes
}

func components(m costmodel.Memory) []component {
	return []component{{"states", m.States}, {"activations", m.Activations}, {"transient", m.Transient}, {"logits", m.Logits}}
}

func largest(m costmodel.Memory) string {
	best := component{}
	for _, c := range components(m) {
		if c.bytes > best.bytes {
			best = c
		}
	}
	return best.name
}

// misfit is the rank that exceeds its capacity most, in proportion, or nil.
func (p *Problem) misfit(s *costmodel.Step) *MemoryError {
	worst, at := 0.0, -1
	for r, k := range s.Ranks {
		if over := float64(k.Memory.Peak()) / float64(k.Memory.Capacity); !k.Memory.Fits() && over > worst {
			worst, at = over, r
		}
	}
	if at < 0 {
		return nil
	}
	m := s.Ranks[at].Memory
	return &MemoryError{Rank: at, Place: p.place(at), Component: largest(m), Memory: m}
}

// memoryOf is the peak memory of rank r with s tokens when `active` ranks have
// tokens and the largest of the others' shards has `widest`. Job.MemoryOn looks
// at nothing else of the others.
func (p *Problem) memoryOf(r int, s units.Tokens, active int, widest units.Tokens) costmodel.Memory {
	shards := make([]units.Tokens, active)
	shards[0] = s
	for i := 1; i < active; i++ {
		shards[i] = widest
	}
	dev := p.Predictor.DeviceMemory(p.Job, p.devices[r].Name)
	dev.Capacity = p.devices[r].Memory
	return p.Job.MemoryOn(shards, 0, dev)
}

// room is the most tokens rank r can hold, 0 if none. Memory never falls with
// tokens, so bisection finds it.
func (p *Problem) room(r, active int, widest units.Tokens) units.Tokens {
	lo, hi := units.Tokens(0), p.Job.SeqLen+1 // fits at lo, not at hi
	for hi-lo > 1 {
		mid := (lo + hi) / 2
		if p.memoryOf(r, mid, active, widest).Fits() {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// rooms is room by rank for a split whose largest shard has `widest` tokens, so
// none is larger. Ranks that are not in `on` have no room. Equal devices share
// one computation.
func (p *Problem) rooms(on []bool, widest units.Tokens) []units.Tokens {
	active := 0
	for _, yes := range on {
		if yes {
			active++
		}
	}
	known := map[string]units.Tokens{}
	rooms := make([]units.Tokens, len(on))
	for r, yes := range on {
		if !yes {
			continue
		}
		n, ok := known[p.devices[r].Name]
		if !ok {
			n = min(widest, p.room(r, active, widest))
			known[p.devices[r].Name] = n
		}
		rooms[r] = n
	}
	return rooms
}

func sum(n []units.Tokens) units.Tokens {
	var total units.Tokens
	for _, x := range n {
		total += x
	}
	return total
}

// InfeasibleError says that no plan fits and names the constraint that binds.
type InfeasibleError struct {
	Proven bool   // false: the search found none, which is no proof
	Reason string // the tightest constraint
	WayOut string
}

// Error is the reason and the way out.
func (e *InfeasibleError) Error() string {
	head := "no split was found that fits: "
	if e.Proven {
		head = "no split fits: "
	}
	return head + e.Reason + "; way out: " + e.WayOut
}

// proveInfeasible counts the tokens that the devices can hold at the most,
// every one at its best: all ranks share the states and blocks in the ring are
// of one token. If they are too few no split fits. The proof needs no search,
// so it comes before any.
func (p *Problem) proveInfeasible() *InfeasibleError {
	n := len(p.ranks)
	var total units.Tokens
	most := map[string]units.Tokens{}
	for r, d := range p.devices {
		if _, ok := most[d.Name]; !ok {
			// Alone a device needs no ring buffers, but holds all states.
			most[d.Name] = max(p.room(r, n, 1), p.room(r, 1, 0))
		}
		total += most[d.Name]
	}
	if total >= p.Job.SeqLen {
		return nil
	}
	tight := p.tightest(most)
	m := p.memoryOf(tight, max(1, most[p.devices[tight].Name]), n, 1)
	return &InfeasibleError{Proven: true, Reason: p.tooFew(tight, total, m), WayOut: p.wayOut(m)}
}

// tightest is the first rank that holds the fewest tokens.
func (p *Problem) tightest(most map[string]units.Tokens) int {
	at := 0
	for r, d := range p.devices {
		if most[d.Name] < most[p.devices[at].Name] {
			at = r
		}
	}
	return at
}

func (p *Problem) tooFew(r int, total units.Tokens, m costmodel.Memory) string {
	if !m.Fits() {
		one := fmt.Sprintf("with a single token %s already needs %v, %v of it %s, of %v x %v", p.place(r), m.Peak(), largestBytes(m), largest(m), costmodel.Usable, m.Capacity)
		if m.States > usable(m.Capacity) {
			one = fmt.Sprintf("%v of weights, gradients and optimizer states already exceed %v x %v of %s", m.States, costmodel.Usable, m.Capacity, p.place(r))
		}
		if total == 0 {
			return one
		}
		return fmt.Sprintf("%s, and the other ranks hold at most %d of %d tokens", one, int64(total), int64(p.Job.SeqLen))
	}
	return fmt.Sprintf("all ranks together hold at most %d of %d tokens; %s is full with %v of %s beside %v of states",
		int64(total), int64(p.Job.SeqLen), p.place(r), largestBytes(m), largest(m), m.States)
}

func largestBytes(m costmodel.Memory) units.Bytes {
	return max(m.States, m.Activations, m.Transient, m.Logits)
}

// wayOut lists what is not done yet against what fills the memory.
func (p *Problem) wayOut(m costmodel.Memory) string {
	ways := []string{"more devices"}
	if z := p.Job.Zero; z != "" && z != costmodel.Zero3 {
		ways = append(ways, "--zero zero3")
	}
	if m.States <= usable(m.Capacity) {
		if p.Job.Recompute != costmodel.RecomputeFull {
			ways = append(ways, "--recompute full")
		}
		ways = append(ways, "a shorter --seq-len")
	} else {
		ways = append(ways, "a smaller model")
	}
	if largest(m) == "logits" {
		ways = append(ways, "a smaller --loss-chunk")
	}
	return strings.Join(ways, ", ")
}
