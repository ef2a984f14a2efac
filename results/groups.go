package results

import (
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver"
)

// mostRows is how many lines a table of ranks or groups may take before it is
// summed up: what fits a screen.
const mostRows = 32

// headWidth is the most characters that stand for all query heads.
const headWidth = 32

// groupPicture draws who computes which heads: the members of every all-to-all
// group, in the order of their ring. Groups alike share their lines. Of a ring
// of single ranks only its order is to tell.
func groupPicture(p *printer, d *solver.Plan) {
	single := func(g costmodel.Group) bool { return len(g) == 1 }
	if !slices.ContainsFunc(d.Groups, func(g costmodel.Group) bool { return !single(g) }) {
		ring, reaches := ringOrder(firstRanks(d.Groups)), d.Layout().Reaches()
		if len(reaches) > 1 && isChain(reaches) {
			ring = "chain: " + strings.TrimSuffix(ring, fmt.Sprintf(" -> %d", d.Groups[0][0].Rank)) + ", keys and values go one way"
		} else {
			ring = "ring: " + ring
		}
		p.para("", ring+ownLast(d)+keptTail(d)+twoBatch(d))
		return
	}
	width := min(headWidth, max(1, d.Job.Model.QHeads))
	p.printf("\nwho computes which heads, by all-to-all group; a bar is the %d query heads\n", d.Job.Model.QHeads)
	t := newTable(column{title: "  rank"}, column{title: "device", most: 24}, column{title: "tokens", number: true}, column{title: "query heads"}, column{title: "KV heads", number: true}, column{title: ""})
	left, short := 0, shortDevices(d)
	for _, c := range classes(d) {
		if len(t.rows) >= mostRows {
			left += len(c.groups)
			continue
		}
		t.section(c.title(d))
		for _, m := range c.members {
			t.row(m.cells(d, short[d.Ranks[m.ranks[0]].Device], width)...)
		}
	}
	t.render(p)
	if left > 0 {
		p.para("", fmt.Sprintf("and %s more; the file that solve writes with -o has all", plural(left, "group")))
	}
	p.para("", groupRing(d.Layout().Reaches())+ownLast(d)+keptTail(d)+headChunks(d)+twoBatch(d))
}

// ownLast says so of a plan whose ranks compute their own block last.
func ownLast(d *solver.Plan) string {
	if !d.OwnLast {
		return ""
	}
	return "; backward every rank computes its own block last, while the gradients of the others' are on their way"
}

// keptTail says so of a plan of which some tokens' keys and values stay at home.
func keptTail(d *solver.Plan) string {
	g, kept := d.Layout().Tail()
	if kept == 0 {
		return ""
	}
	return fmt.Sprintf("; the keys and values of the last %d tokens, which no other group needs, stay in group %d", int64(kept), g)
}

// headChunks says so of a plan whose ranks compute their heads in chunks.
func headChunks(d *solver.Plan) string {
	if d.HeadChunks < 2 {
		return ""
	}
	return fmt.Sprintf("; every rank computes its heads in %d chunks, and the all-to-alls of one are on their way while others are computed", d.HeadChunks)
}

// twoBatch says so of a plan whose micro-batches go in twos.
func twoBatch(d *solver.Plan) string {
	if !d.TwoBatch {
		return ""
	}
	moving, last := "first keys and values", ""
	if slices.ContainsFunc(d.Groups, func(g costmodel.Group) bool { return len(g) > 1 }) {
		moving = "all-to-alls"
	}
	if n := d.Job.Accumulate; n%2 == 1 {
		last = fmt.Sprintf("; the last of %d goes alone", n)
	}
	return "; micro-batches go through the layers in twos, and the " + moving + " of one are on their way while the other is computed" + inTurns(d) + last
}

// inTurns says in which passes the steps of the rings of two take turns.
func inTurns(d *solver.Plan) string {
	rings := d.Layout().InTurns()
	if rings == "" {
		return ""
	}
	return "; the steps of their " + rings + " take turns"
}

// groupRing says which way keys and values go, by how far they do.
func groupRing(reaches []int) string {
	n := len(reaches)
	way := fmt.Sprintf("ring: keys and values travel from group 0 to 1, and so on, from %d to 0", n-1)
	if n == 2 {
		way = "ring: keys and values travel from group 0 to 1 and from 1 to 0"
	}
	switch {
	case n == 1:
		return "one group: keys and values travel in its all-to-alls only, in no ring"
	case slices.Min(reaches) == n-1:
		return way
	case isChain(reaches) && n == 2:
		return "chain: keys and values travel from group 0 to 1, and their gradients back"
	case isChain(reaches):
		return fmt.Sprintf("chain: keys and values travel from group 0 to 1, and so on to %d, and their gradients from the last straight home", n-1)
	}
	return way + ", each only as far as a group needs them"
}

// isChain says whether keys and values go one way, all to the last group.
func isChain(reaches []int) bool {
	for g, r := range reaches {
		if r != len(reaches)-1-g {
			return false
		}
	}
	return true
}

// class is groups that look alike but for their ranks.
type class struct {
	groups  []int
	members []memberRun // of the first of them
}

// memberRun is neighbouring members of a group that own and compute alike.
type memberRun struct {
	ranks         []int
	tokens        units.Tokens
	first, qHeads int // of the first of them
	kvHeads       int // the most of any
}

func classes(d *solver.Plan) []class {
	var all []class
	known := map[string]int{}
	for g, group := range d.Groups {
		var key strings.Builder
		for _, m := range group {
			r := d.Ranks[m.Rank]
			fmt.Fprintf(&key, "%s %d %d, ", r.Device, r.Tokens, m.QHeads)
		}
		i, ok := known[key.String()]
		if !ok {
			i = len(all)
			known[key.String()] = i
			all = append(all, class{members: runs(d, group)})
		}
		all[i].groups = append(all[i].groups, g)
	}
	return all
}

func runs(d *solver.Plan, group costmodel.Group) []memberRun {
	var all []memberRun
	first := 0
	for _, m := range group {
		r := d.Ranks[m.Rank]
		if n := len(all) - 1; n >= 0 && all[n].tokens == r.Tokens && all[n].qHeads == m.QHeads && d.Ranks[all[n].ranks[0]].Device == r.Device {
			all[n].ranks = append(all[n].ranks, m.Rank)
			all[n].kvHeads = max(all[n].kvHeads, r.KVHeads)
		} else {
			all = append(all, memberRun{[]int{m.Rank}, r.Tokens, first, m.QHeads, r.KVHeads})
		}
		first += m.QHeads
	}
	return all
}

// title is the line above the members of a class.
func (c class) title(d *solver.Plan) string {
	var tokens units.Tokens
	for _, m := range d.Groups[c.groups[0]] {
		tokens += d.Ranks[m.Rank].Tokens
	}
	if len(c.groups) == 1 {
		return fmt.Sprintf("group %d on %s: %s tokens", c.groups[0], whereAre(d, c.groups), tokens)
	}
	return fmt.Sprintf("groups %s on %s, %d groups like this one: %s tokens each", inShort(c.groups), whereAre(d, c.groups), len(c.groups), tokens)
}

// whereAre names the nodes of groups' members: "n0, n1", "8 nodes, n0 .. n7".
func whereAre(d *solver.Plan, groups []int) string {
	var names []string
	for _, g := range groups {
		for _, m := range d.Groups[g] {
			if n := d.Ranks[m.Rank].Node; !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
	return someNodes(names)
}

// someNodes prints up to three names, and of more the ends.
func someNodes(names []string) string {
	if len(names) > 3 {
		return fmt.Sprintf("%d nodes, %s .. %s", len(names), names[0], names[len(names)-1])
	}
	return strings.Join(names, ", ")
}

// shortDevices are the device types by their full names, without their software
// where the plan has only one type of that model; the plan's first line has the
// names in full.
func shortDevices(d *solver.Plan) map[string]string {
	types, models := deviceTypes(d), map[string]int{}
	for _, name := range types {
		model, _, _ := strings.Cut(name, "/")
		models[model]++
	}
	short := map[string]string{}
	for _, name := range types {
		short[name] = name
		if model, _, _ := strings.Cut(name, "/"); models[model] == 1 {
			short[name] = model
		}
	}
	return short
}

func (m memberRun) cells(d *solver.Plan, device string, width int) []string {
	heads := d.Job.Model.QHeads
	each, bar := "", strings.Repeat(".", width)
	to := m.first + m.qHeads*len(m.ranks)
	text := fmt.Sprintf("%d-%d", m.first, to-1)
	switch {
	case m.qHeads == 0:
		text = "none"
	case len(m.ranks) > 1:
		each = " each"
		text = fmt.Sprintf("%d each, %s", m.qHeads, text)
	case m.qHeads == 1:
		text = fmt.Sprint(m.first)
	}
	if m.qHeads > 0 {
		// A head is in the cells that its part of the bar begins in, and in one at least.
		from := m.first * width / heads
		upTo := max(from+1, to*width/heads)
		bar = bar[:from] + strings.Repeat("#", upTo-from) + bar[upTo:]
	}
	return []string{"  " + inShort(m.ranks), device, m.tokens.String() + each, text, fmt.Sprint(m.kvHeads), "|" + bar + "|"}
}

// memberRanks lists a group's ranks: "0-3, 8".
func memberRanks(group costmodel.Group) string {
	var ranks []int
	for _, m := range group {
		ranks = append(ranks, m.Rank)
	}
	return inShort(ranks)
}

// inShort prints numbers with runs of neighbours in short: "0-3, 8".
func inShort(numbers []int) string {
	var parts []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		if j > i {
			parts = append(parts, fmt.Sprintf("%d-%d", numbers[i], numbers[j]))
		} else {
			parts = append(parts, fmt.Sprint(numbers[i]))
		}
		i = j + 1
	}
	const most = 8
	if len(parts) > most {
		return fmt.Sprintf("%s .. %s (%d)", strings.Join(parts[:most/2], ", "), parts[len(parts)-1], len(numbers))
	}
	return strings.Join(parts, ", ")
}
