package results

import (
	"fmt"
	"slices"
	"strings"
)

// notes are the footnotes of a rendering: numbered in the order of their first
// mark, each text once, however many cells it is marked at.
type notes struct{ texts []string }

// mark returns the mark of a footnote, " (3)", for the end of a cell.
func (n *notes) mark(text string) string {
	i := slices.Index(n.texts, text)
	if i < 0 {
		i = len(n.texts)
		n.texts = append(n.texts, text)
	}
	return fmt.Sprintf(" (%d)", i+1)
}

// add makes footnotes that belong to no cell.
func (n *notes) add(texts ...string) {
	for _, t := range texts {
		n.mark(t)
	}
}

func (n *notes) render(p *printer) {
	if len(n.texts) == 0 {
		return
	}
	p.printf("\n")
	for i, t := range n.texts {
		p.para(fmt.Sprintf("(%d) ", i+1), t)
	}
}

// stampPrefix is how the laws' own warning about simulation begins; the first
// line of every rendering says it already.
const stampPrefix = "SIMULATED:"

// unstamped leaves out the warning that the first line has said already.
func unstamped(warnings []string) []string {
	return slices.DeleteFunc(slices.Clone(warnings), func(w string) bool { return strings.HasPrefix(w, stampPrefix) })
}

// stamp opens every rendering: nothing simulated is ever shown as measured.
func stamp(simulated bool) string {
	if simulated {
		return "SIMULATED"
	}
	return "MEASURED"
}

// origin is the sentence part that explains the stamp.
func origin(simulated bool) string {
	if simulated {
		return "made from a simulated backend; no hardware was measured"
	}
	return "fitted to times measured on the devices below"
}
