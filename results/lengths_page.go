package results

import (
	"fmt"
	"io"
	"strconv"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Lengths prints a summary of sequence lengths: the distribution as a picture,
// and what it means for padding and for balance.
func Lengths(w io.Writer, s *LengthSummary) error {
	p, n := &printer{w: w}, &notes{}
	p.para("", fmt.Sprintf("lengths %s: %s, %s, mean %s; %s", s.Name, plural(s.Sequences, "sequence"), manyTokens(s.Total), number(s.Mean), s.Source))
	p.printf("\n")
	bandTable(p, s)
	p.printf("\n")
	quantileTable(p, s)
	p.printf("\n")
	paddingTable(p, n, s)
	p.printf("\n")
	imbalanceTable(p, n, s)
	n.render(p)
	return p.err
}

// manyTokens prints a total in decimal multiples; a context's k would mislead.
func manyTokens(t units.Tokens) string {
	v := float64(t)
	for _, unit := range []string{"", " thousand", " million", " billion"} {
		if v < 1000 {
			return number(v) + unit + " tokens"
		}
		v /= 1000
	}
	return number(v) + " trillion tokens"
}

// Widths of the two bars of a band.
const bandWidth = 34

// bandTable draws the bands, each twice as wide as the one before: the picture
// is on a logarithmic scale of lengths, its bars on a linear one of shares.
func bandTable(p *printer, s *LengthSummary) {
	mostSequences, mostTokens := 1, units.Tokens(1)
	for _, b := range s.Bands {
		mostSequences, mostTokens = max(mostSequences, b.Sequences), max(mostTokens, b.Tokens)
	}
	t := newTable(column{title: "length\ntokens", number: true}, column{title: "\nsequences", number: true}, column{title: "share of\nsequences", number: true}, column{title: ""},
		column{title: "share of\ntokens", number: true}, column{title: ""})
	for _, b := range s.Bands {
		sequences, tokens := float64(b.Sequences), float64(b.Tokens)
		t.row(fmt.Sprintf("%s-%s", bandEdge(b.Low), b.High), strconv.Itoa(b.Sequences),
			tailShare(sequences/float64(s.Sequences)), bar(sequences/float64(mostSequences), bandWidth, '#', ' '),
			tailShare(tokens/float64(s.Total)), bar(tokens/float64(mostTokens), bandWidth, '=', ' '))
	}
	t.render(p)
}

// bandEdge prints the first length of a band as the end of the one before, since
// "1k-2k" is read more easily than "1025-2k".
func bandEdge(low units.Tokens) string {
	if low == 1 {
		return "1"
	}
	return (low - 1).String()
}

// tailShare prints a share with the digits that a long tail needs.
func tailShare(f float64) string {
	if f > 0 && f < 0.001 {
		return strconv.FormatFloat(100*f, 'g', 1, 64) + " %"
	}
	return units.Percent(f)
}

func quantileTable(p *printer, s *LengthSummary) {
	var columns []column
	var row []string
	for _, q := range s.Quantiles {
		title := "p" + strconv.FormatFloat(100*q.Share, 'f', -1, 64)
		switch q.Share {
		case 0:
			title = "shortest"
		case 0.5:
			title = "median"
		case 1:
			title = "longest"
		}
		columns = append(columns, column{title: title, number: true})
		row = append(row, strconv.FormatInt(int64(q.Length), 10))
	}
	t := newTable(columns...)
	t.row(row...)
	t.render(p)
}

func paddingTable(p *printer, n *notes, s *LengthSummary) {
	t := newTable(column{title: "what is done to sequences"}, column{title: "tokens that\nare padding", number: true}, column{title: "causal attention,\ntimes the work needed", number: true}, column{title: "\nbuffers", number: true})
	for _, w := range s.Padding {
		buffers := none
		if w.Buffers > 0 {
			buffers = strconv.Itoa(w.Buffers)
		}
		if w.LeftOut > 0 {
			buffers += n.mark(fmt.Sprintf("without the %s above %s tokens", plural(w.LeftOut, "sequence"), packInto))
		}
		t.row(w.Way, tailShare(w.Waste), times(w.Attention), buffers)
	}
	t.render(p)
}

func times(f float64) string { return number(f) + " x" }

func imbalanceTable(p *printer, n *notes, s *LengthSummary) {
	p.para("", fmt.Sprintf("%s of %s dealt to ranks in turn: the most loaded rank over the mean",
		batches(s.Batches), plural(s.Batch, "sequence")))
	t := newTable(column{title: "ranks", number: true}, column{title: "tokens", number: true}, column{title: "tokens squared", number: true}, column{title: "worst batch", number: true},
		column{title: "at best, no sequence cut" + n.mark("the longest sequence's work over a rank's mean share: above 1, some sequence must be shared by several ranks"), number: true})
	for _, r := range s.Imbalance {
		t.row(strconv.Itoa(r.Ranks), times(r.Tokens), times(r.Work), times(r.Worst), times(r.Whole))
	}
	t.render(p)
}

func batches(n int) string {
	if n == 1 {
		return "one batch"
	}
	return fmt.Sprintf("%d batches", n)
}
