package costmodel

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Settle says, to be read after a reason to doubt the difference between two steps (see
// GainError), which measurement settles it, and on what: "; to settle it, on a10: evenkeel
// calibrate --fresh --only attn_bwd". The reason itself may name a law of a device that
// neither step has, whose laws theirs were made of, or an assumption that names no device at
// all: then it is said whose laws rest on it, for who measured the other device would know
// no more of these. It is empty where no law of the steps rests on the reason.
func Settle(a, b *Step, reason string) string {
	if reason == contentionTitle() {
		return settleContention(slices.Concat(a.devices(), b.devices()))
	}
	if device, ok := strings.CutPrefix(reason, trainingDoubt); ok {
		return fmt.Sprintf("; to settle it, calibrate one %s, train a few steps on it (python/examples/train_step.py), and evenkeel fit --training", ModelOf(device))
	}
	var ops, on []string
	laws := slices.Concat(a.restOn(reason), b.restOn(reason))
	others := func(l *Law) bool { return l.Title() != reason }
	own := slices.ContainsFunc(laws, func(l *Law) bool { return !others(l) })
	if own { // measured, it tells of those that were made of it too
		laws = slices.DeleteFunc(laws, others)
	}
	for _, l := range laws {
		ops = append(ops, string(l.Op))
		on = append(on, ModelOf(l.Device)+l.Group)
	}
	if len(ops) == 0 {
		return ""
	}
	ops = distinct(ops)
	places := strings.Join(distinct(on), " and ")
	rests := ""
	switch {
	case own:
	case len(ops) == 1:
		rests = fmt.Sprintf(", on which %s of %s rests", ops[0], places)
	default:
		rests = fmt.Sprintf(", on which %s of %s rest", strings.Join(ops, ", "), places)
	}
	flags := ""
	for _, l := range laws {
		flags = cmp.Or(flags, throughTorch(l.Device+l.Group))
	}
	return fmt.Sprintf("%s; to settle it, on %s: evenkeel calibrate --fresh --only %s%s", rests, places, strings.Join(ops, ","), flags)
}

// settleContention says what measures how much messages slow computing beside them, which no
// calibration of GPUs does. Overlaps alone make no profile, and --only takes none.
func settleContention(devices []string) string {
	const calibrate, replay = "evenkeel calibrate --fresh --backend torch", "evenkeel replay of the plan, then check"
	onProcessor := func(d string) bool { return throughTorch(d) != "" }
	switch processors := slices.ContainsFunc(devices, onProcessor); {
	case processors && slices.ContainsFunc(devices, func(d string) bool { return !onProcessor(d) }):
		return fmt.Sprintf("; to settle it: on processors %s, on the others %s", calibrate, replay)
	case processors:
		return "; to settle it: " + calibrate
	}
	return "; to settle it: " + replay
}

// devices are the types at work in the step.
func (s *Step) devices() []string {
	var all []string
	for _, x := range s.sides {
		for l := range x.laws {
			if l.Device != "" {
				all = append(all, l.Device)
			}
		}
	}
	for _, x := range s.turns {
		all = append(all, x.devices()...)
	}
	return all
}

// restOn are the laws of the step that are in doubt for a reason.
func (s *Step) restOn(reason string) []*Law {
	var found []*Law
	for _, x := range s.sides {
		for l := range x.laws {
			if l.restsOn(reason) {
				found = append(found, l)
			}
		}
	}
	for _, x := range s.turns {
		found = append(found, x.restOn(reason)...)
	}
	return found
}

func (l *Law) restsOn(reason string) bool {
	return l.Title() == reason || slices.ContainsFunc(l.Doubts, func(d Doubt) bool { return d.Of == reason })
}

// distinct sorts, as the laws of a map come in any order.
func distinct(all []string) []string {
	slices.Sort(all)
	return slices.Compact(all)
}
