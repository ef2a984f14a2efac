// Package spelling tells which of the known names a wrong one was perhaps meant to be.
package spelling

import (
	"fmt"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
)

// maxCompared is the longest name that is compared with the known ones: the comparison
// takes the product of the lengths, and nobody mistypes a longer one.
const maxCompared = 100

// Nearest is the known name that a wrong one most probably was meant to be, the first of
// equally near ones, or "". Up to a third of its letters may be wrong, of short names two,
// but never more than half of them; of names of up to four letters half may only be two that are
// exchanged, or the end: rate is no slip of name. Capital letters count as small ones.
func Nearest(name string, known []string) string {
	if len(name) > maxCompared {
		return ""
	}
	best, at := min(max(2, len(name)/3), len(name)/2)+1, ""
	for _, k := range known {
		a, b := strings.ToLower(name), strings.ToLower(k)
		if d := levenshtein.ComputeDistance(a, b); d < best && (d < 2 || len(a) > shortName || alike(a, b)) {
			best, at = d, k
		}
	}
	return at
}

// shortName is the most letters of a name of which two wrong ones leave too little.
const shortName = 4

// alike says whether a name has the letters of another, or goes on where that ends.
func alike(a, b string) bool {
	letters := func(s string) string { return string(slices.Sorted(slices.Values([]byte(s)))) }
	return letters(a) == letters(b) || strings.HasPrefix(a, b) || strings.HasPrefix(b, a)
}

// Suggest asks after names that were perhaps meant, where a message names the wrong one:
// ` (did you mean "gemm"?)`. Of none it is "".
func Suggest(names ...string) string {
	var quoted []string
	for _, n := range names {
		if n != "" {
			quoted = append(quoted, fmt.Sprintf("%q", n))
		}
	}
	if len(quoted) == 0 {
		return ""
	}
	return fmt.Sprintf(" (did you mean %s?)", strings.Join(quoted, " or "))
}

// Hint suggests the nearest of the known names, if one is near.
func Hint(name string, known []string) string { return Suggest(Nearest(name, known)) }
