package workload

import (
	"fmt"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Shape is what is done to lengths before they are planned.
type Shape struct {
	Limit    units.Tokens // after padding; 0 for none
	Truncate bool         // cut what is longer to the limit, instead of dropping it
	Multiple units.Tokens // pad up to a multiple of it; 0 and 1 for no padding
}

// Shaped is the result of a Shape: the new lengths, and what was dropped, cut and added.
type Shaped struct {
	Lengths   []units.Tokens
	Kept      []int // indices of Lengths in the original lengths; nil unless some were dropped
	Dropped   int
	Truncated int
	Cut       units.Tokens // tokens that truncation removed
	Padding   units.Tokens // tokens that padding added
}

// Validate reports a limit or a multiple that leaves nothing.
func (s Shape) Validate() error {
	switch {
	case s.Limit < 0 || s.Limit > MaxLength:
		return fmt.Errorf("limit_tokens: %d: want 0 for none, or up to %d", int64(s.Limit), int64(MaxLength))
	case s.Multiple < 0 || s.Multiple > MaxLength:
		return fmt.Errorf("multiple_tokens: %d: want 0 for no padding, or up to %d", int64(s.Multiple), int64(MaxLength))
	case s.Limit > 0 && s.Limit < s.Multiple:
		return fmt.Errorf("limit_tokens: %d: below the padding's multiple of %d: no sequence is left", int64(s.Limit), int64(s.Multiple))
	}
	return nil
}

// Apply truncates or drops lengths above the limit and pads the others.
func (s Shape) Apply(lengths []units.Tokens) Shaped {
	out := Shaped{Lengths: make([]units.Tokens, 0, len(lengths))}
	for i, before := range lengths {
		after, keep := s.one(before)
		if !keep {
			if out.Dropped++; out.Dropped == 1 {
				out.Kept = upTo(i)
			}
			continue
		}
		if after < before {
			out.Truncated++
			out.Cut += before - after
		} else {
			out.Padding += after - before
		}
		if out.Dropped > 0 {
			out.Kept = append(out.Kept, i)
		}
		out.Lengths = append(out.Lengths, after)
	}
	return out
}

// one shapes one length; false if it is to be dropped.
func (s Shape) one(l units.Tokens) (units.Tokens, bool) {
	multiple := max(1, s.Multiple)
	padded := (l + multiple - 1) / multiple * multiple
	if s.Limit == 0 || padded <= s.Limit {
		return padded, true
	}
	return s.Limit / multiple * multiple, s.Truncate
}

func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// CheckRows reports what keeps numbers from being the rows of n lengths in what they are taken
// from: one for each, rising from 0 on, or none at all.
func CheckRows(rows []int, n int) error {
	if len(rows) > 0 && len(rows) != n {
		return fmt.Errorf("lengths_rows: %d: want one for each of %s, or none", len(rows), units.Count(n, "length"))
	}
	for i, row := range rows {
		if row < 0 || i > 0 && row <= rows[i-1] {
			return fmt.Errorf("lengths_rows[%d]: %d: want rising numbers from 0 on", i, row)
		}
	}
	return nil
}

// Batches is the number of whole global batches of size sequences.
func Batches(lengths []units.Tokens, size int) int {
	if size < 1 {
		return 0
	}
	return len(lengths) / size
}

// Batch returns global batch i of size sequences: the lengths from index size*i on.
//
// Error: there are fewer lengths.
func Batch(lengths []units.Tokens, size, i int) ([]units.Tokens, error) {
	if n := Batches(lengths, size); i < 0 || i >= n {
		be := "are"
		if n == 1 {
			be = "is"
		}
		return nil, fmt.Errorf("there %s %s of %s, counted from 0, in %s", be, units.Count(n, "batch"), units.Count(size, "sequence"), units.Count(len(lengths), "length"))
	}
	return lengths[size*i : size*(i+1)], nil
}
