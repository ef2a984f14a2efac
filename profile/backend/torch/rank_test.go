package torch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/profile"
)

// Of several ranks that failed, the one is named that explains the others: a
// process that ended, then one that stayed silent, then who refused, and last
// those that only lost a peer.
func TestTheCauseExplainsTheOthers(t *testing.T) {
	var (
		fine    = answer{}
		ended   = answer{err: lost(profile.Crashed, errors.New("worker: signal: killed"))}
		silent  = answer{err: context.Canceled, silent: true}
		refused = answer{err: &profile.OpError{Class: profile.Unsupported, Err: errors.New("no such op")}}
		peer    = answer{err: lost(profile.Crashed, errors.New("connection closed by peer"))}
		late    = answer{err: lost(profile.Hung, errors.New("no answer"))}
	)
	for i, c := range []struct {
		answers []answer
		rank    int
		class   profile.Class
		text    string
	}{
		{[]answer{peer, ended, silent}, 1, profile.Crashed, "signal: killed"},
		{[]answer{peer, peer, silent}, 2, profile.Hung, "did not answer while its peers gave up"},
		{[]answer{peer, refused, peer}, 1, profile.Unsupported, "no such op"},
		{[]answer{fine, peer, fine}, 1, profile.Crashed, "closed by peer"},
		{[]answer{fine, peer, late}, 2, profile.Hung, "no answer"},
		{[]answer{late, late, late}, -1, profile.Hung, "no rank of 3 answered"},
	} {
		ranks := make([]*rank, len(c.answers))
		for r := range ranks {
			ranks[r] = &rank{place: fmt.Sprintf("n0/r%d", r)}
			c.answers[r].rank = r
		}
		err := cause(t.Context(), ranks, c.answers)
		var e *profile.OpError
		name := fmt.Sprintf("rank %d (n0/r%d)", c.rank, c.rank)
		if !errors.As(err, &e) || e.Class != c.class || !strings.Contains(err.Error(), c.text) || c.rank >= 0 && !strings.Contains(err.Error(), name) {
			t.Errorf("%d: %v, want %s of class %s with %q", i, err, name, c.class, c.text)
		}
	}
	if err := cause(t.Context(), []*rank{{}, {}}, []answer{fine, fine}); err != nil {
		t.Error(err)
	}
}

// Two nodes of two ranks, one of another type: neighbours, one of each node, and
// halves of two types; sets of one signature share no rank.
func TestGroupsOfSeveralNodesAndTypes(t *testing.T) {
	var ranks []*rank
	for i := range 4 {
		r := &rank{place: fmt.Sprintf("n%d/g%d", i/2, i%2), node: i / 2, device: op.DeviceType{Name: "a"}}
		if i == 3 {
			r.device.Name = "b"
		}
		ranks = append(ranks, r)
	}
	got := map[string][][]int{}
	for _, g := range findGroups(ranks, []int{2}, func([]int) string { return "wire" }) {
		got[g.Name] = g.sets
		for i, s := range g.sets {
			for _, other := range g.sets[i+1:] {
				if overlap(s, other) {
					t.Errorf("%s: %v and %v share a rank", g.Name, s, other)
				}
			}
		}
	}
	for name, want := range map[string][][]int{
		"2 a over wire":                  {{0, 1}},
		"1 a + 1 b over wire":            {{2, 3}},
		"2 a over wire on 2 nodes":       {{0, 2}},
		"1 a + 1 b over wire on 2 nodes": {{1, 3}},
	} {
		if !slices.EqualFunc(got[name], want, slices.Equal) {
			t.Errorf("%s: %v, want %v", name, got[name], want)
		}
	}
	if len(got) != 4 {
		t.Errorf("%v", got)
	}
}
