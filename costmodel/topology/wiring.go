package topology

import (
	"fmt"
	"strings"
)

// wires is what a machine's GPUs have between them, pair by pair.
type wires struct {
	pairs, wired int
	least, most  int    // links of a wired pair
	ofOne        int    // the most links that the pairs of one GPU have together
	fabric       string // of the first wired pair
	farthest     Hop    // of the pairs that are not wired
	islands      [][]int
	names        []string
}

func wiring(m *Machine) wires {
	w := wires{}
	for i, g := range m.GPUs {
		w.names = append(w.names, g.Name)
		for j := range i {
			w.add(m.Between[i][j])
		}
		links := 0
		for _, p := range m.Between[i] {
			links += p.Wires
		}
		w.ofOne = max(w.ofOne, links)
	}
	seen := make([]bool, len(m.GPUs))
	for i := range m.GPUs {
		if !seen[i] {
			w.islands = append(w.islands, reach(m, i, seen))
		}
	}
	return w
}

func (w *wires) add(p Path) {
	w.pairs++
	if p.Wires == 0 {
		far, _ := w.farthest.rank()
		if r, ok := p.PCIe.rank(); ok && (w.farthest == "" || r > far) {
			w.farthest = p.PCIe
		}
		return
	}
	if w.wired++; w.wired == 1 {
		w.fabric, w.least = p.Fabric, p.Wires
	}
	w.least, w.most = min(w.least, p.Wires), max(w.most, p.Wires)
}

// reach lists the GPUs that wires lead to from one, itself first.
func reach(m *Machine, from int, seen []bool) []int {
	island := []int{from}
	seen[from] = true
	for at := 0; at < len(island); at++ {
		for to, p := range m.Between[island[at]] {
			if p.Wires > 0 && !seen[to] {
				seen[to] = true
				island = append(island, to)
			}
		}
	}
	return island
}

// counts is how many links a wired pair has: "18", or "1 to 2".
func (w wires) counts() string {
	if w.least == w.most {
		return fmt.Sprint(w.most)
	}
	return fmt.Sprintf("%d to %d", w.least, w.most)
}

// mostIslands bounds what is listed of them.
const mostIslands = 8

func (w wires) islandNames() string {
	var all []string
	for i, island := range w.islands {
		if i == mostIslands {
			all = append(all, fmt.Sprintf("and %d more", len(w.islands)-i))
			break
		}
		var names []string
		for _, g := range island {
			names = append(names, w.names[g])
		}
		all = append(all, "("+strings.Join(names, " ")+")")
	}
	return strings.Join(all, " ")
}
