package results

import (
	"fmt"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver"
)

// owners are the characters that stand for ranks 0 to 61 in a picture of a
// layout; further ranks begin anew, as neighbours still differ.
const owners = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// RingPicture draws who owns which part of a sequence: one character for the
// same number of tokens each, that of the rank which owns the middle one. Under
// a nested zig-zag every rank shows twice, left and right of those after it,
// the last one in the middle. "?" is a position that nobody owns. It is empty
// for a layout without tokens.
func RingPicture(l costmodel.Layout, seqLen units.Tokens, width int) string {
	if seqLen < 1 || width < 1 {
		return ""
	}
	width = int(min(units.Tokens(width), seqLen))
	pic := []byte(strings.Repeat("?", width))
	for r, s := range l.Shards {
		for _, g := range s.Segments {
			for i := firstCell(g.Start, seqLen, width); i < firstCell(g.End, seqLen, width); i++ {
				pic[i] = owners[r%len(owners)]
			}
		}
	}
	return string(pic)
}

// firstCell is the first cell whose middle is at or after a position.
func firstCell(at, seqLen units.Tokens, width int) int {
	// Cell i has its middle at (2i+1) seqLen / (2 width).
	n := (2*int64(at)*int64(width) + int64(seqLen) - 1) / int64(seqLen)
	return int(min(max(n, 0)/2, int64(width)))
}

func layoutPicture(p *printer, d *solver.Plan) {
	const width = 96
	pic := RingPicture(d.Layout(), d.Job.SeqLen, width)
	if pic == "" || len(d.Ranks) == 0 {
		return
	}
	each := "1 token"
	if n := units.Tokens(len(pic)); n != d.Job.SeqLen {
		each = number(float64(d.Job.SeqLen)/float64(n)) + " tokens"
	}
	p.printf("\nwho owns which tokens, from 0 to %s, by rank; a character is %s\n  |%s|\n", d.Job.SeqLen, each, pic)
	if len(d.Ranks) > len(owners) {
		p.printf("  ranks from %d on begin at 0 again\n", len(owners))
	}
	groupPicture(p, d)
}

// firstRanks names every group by its first rank.
func firstRanks(groups []costmodel.Group) []int {
	var ranks []int
	for _, g := range groups {
		ranks = append(ranks, g[0].Rank)
	}
	return ranks
}

// ringOrder prints the ring, runs of neighbours in short: "0 -> 1 .. 7 -> 0".
func ringOrder(ring []int) string {
	if len(ring) == 0 {
		return none
	}
	if len(ring) == 1 {
		return fmt.Sprintf("rank %d alone, nothing travels", ring[0])
	}
	var parts []string
	for i := 0; i < len(ring); {
		j := i
		for j+1 < len(ring) && ring[j+1] == ring[j]+1 {
			j++
		}
		parts = append(parts, fmt.Sprint(ring[i]))
		switch {
		case j > i+1:
			parts[len(parts)-1] += fmt.Sprintf(" .. %d", ring[j])
		case j == i+1:
			parts = append(parts, fmt.Sprint(ring[j]))
		}
		i = j + 1
	}
	return strings.Join(append(parts, fmt.Sprint(ring[0])), " -> ")
}
