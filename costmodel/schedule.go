package costmodel

import "fmt"

// Schedule says how a layout is run, as opposed to who has what: in which order its ranks
// take blocks, heads and micro-batches, and which messages move meanwhile. What is
// computed is the same under every schedule. The zero one is what ring attention and
// Ulysses do today: a rank computes its own block first and all heads at once, blocks are
// sent whole, and micro-batches go one after the other.
//
// A Schedule is comparable, and whoever hands a layout on hands on all of it. So a further
// way to run a layout is a field here, with a bit in Bits and a rule in validate where it
// is not for all layouts; besides, what simulates it, and what tells of it in words.
type Schedule struct {
	// OwnLast says that in the backward pass each group computes its own KV block last
	// instead of first, as TransformerEngine does. The gradients of the other groups' blocks
	// then travel back while it does. The block that the next group computes first is sent as
	// soon as the pass begins.
	OwnLast bool `json:"own_last,omitzero"`
	// KeepTail says that only those segments of a group's KV block are sent that some other
	// group needs (in the backward pass, their gradients). The group with the end of the
	// sequence keeps its tokens behind all others' tokens. Without it blocks are sent whole,
	// as ring attention does today.
	KeepTail bool `json:"keep_tail,omitzero"`
	// HeadChunks is the number of chunks, 2 to 4 (MaxHeadChunks), in which the ranks of a single
	// all-to-all group compute their heads one chunk after the other; 0 is all at once. The
	// all-to-alls of one chunk then overlap with the attention of another.
	HeadChunks int `json:"head_chunks,omitzero"`
	// TwoBatch says that micro-batches go through the layers in pairs, both under this
	// schedule, so that one computes during the all-to-alls of the other.
	// The last one of an odd number goes alone.
	TwoBatch bool `json:"two_batch_overlap,omitzero"`
	// WeaveForward and WeaveBackward say of a pass that the rings of the two take turns step
	// by step, where they would go one after the other. They are for
	// layouts with TwoBatch and several groups.
	WeaveForward  bool `json:"weave_forward,omitzero"`
	WeaveBackward bool `json:"weave_backward,omitzero"`
}

// MaxHeadChunks is the largest number of chunks of a layout. With four, three quarters of
// the all-to-alls can overlap; each further chunk would mostly add launches.
const MaxHeadChunks = 4

// chunks is how many passes over heads the attention makes.
func (s Schedule) chunks() int { return max(1, s.HeadChunks) }

// Among is what of the schedule so many groups can have: an own block comes last where there
// are others, rings take turns where there are two of them, chunks of heads are for one group.
func (s Schedule) Among(groups int) Schedule {
	if groups != 1 {
		s.HeadChunks = 0
	}
	s.OwnLast = s.OwnLast && groups > 1
	if groups < 2 || !s.TwoBatch {
		s.WeaveForward, s.WeaveBackward = false, false
	}
	return s
}

// OneByOne is the schedule with micro-batches one after the other.
func (s Schedule) OneByOne() Schedule {
	s.TwoBatch, s.WeaveForward, s.WeaveBackward = false, false, false
	return s
}

// weaves says whether the rings of two micro-batches take turns in a pass.
func (s Schedule) weaves(back bool) bool {
	if back {
		return s.WeaveBackward
	}
	return s.WeaveForward
}

// InTurns names the rings of two micro-batches that take turns: "rings", "forward rings",
// "backward rings", or nothing.
func (s Schedule) InTurns() string {
	switch {
	case s.WeaveForward && s.WeaveBackward:
		return "rings"
	case s.WeaveForward:
		return "forward rings"
	case s.WeaveBackward:
		return "backward rings"
	}
	return ""
}

// Bits are the schedule as a set of bits, one for each way in which it differs from the zero
// one: a key that tells schedules apart.
func (s Schedule) Bits() uint64 {
	flags := [...]bool{s.OwnLast, s.TwoBatch, s.KeepTail, s.WeaveForward, s.WeaveBackward}
	var bits uint64
	for i, on := range flags {
		if on {
			bits |= 1 << i
		}
	}
	if s.HeadChunks > 1 {
		bits |= 1 << (len(flags) + s.HeadChunks - 2)
	}
	return bits
}

// validate reports what of the schedule is not for so many groups.
func (s Schedule) validate(groups int) error {
	switch {
	case s.HeadChunks < 0 || s.HeadChunks == 1 || s.HeadChunks > MaxHeadChunks:
		return fmt.Errorf("head_chunks: %d: want 2 to %d, or none for all heads at once", s.HeadChunks, MaxHeadChunks)
	case s.HeadChunks > 1 && groups != 1:
		return fmt.Errorf("head_chunks: %d, with %d groups: chunks are for a single group, which has no ring", s.HeadChunks, groups)
	case s.HeadChunks > 1 && s.TwoBatch:
		return fmt.Errorf("two_batch_overlap: with head_chunks %d: either hides all-to-alls, a layout has one of them", s.HeadChunks)
	}
	return s.validateWeave(groups)
}

// validateWeave checks that there are two rings to weave.
func (s Schedule) validateWeave(groups int) error {
	name := "weave_forward"
	if !s.WeaveForward {
		name = "weave_backward"
	}
	switch {
	case s.InTurns() == "":
	case !s.TwoBatch:
		return fmt.Errorf("%s: without two_batch_overlap: the rings of two micro-batches take turns", name)
	case groups < 2:
		return fmt.Errorf("%s: with a single group: it has no ring", name)
	}
	return nil
}
