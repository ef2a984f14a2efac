package fit_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
)

// A profile knows its own points in whatever file they come; points of the same
// shapes, measured again, are news to it.
func TestOwnPointsAreKnownInAnotherFile(t *testing.T) {
	skipShort(t)
	ops := []op.Kind{op.KindGEMM, op.KindNorm}
	_, recording := recorded(t, "1xbig,seed=1", 30*time.Second, ops...)
	p := fitted(t, dataOf(t, recording))
	again := dataOf(t, bytes.Replace(recording, []byte(`"tool":"test"`), []byte(`"tool":"another"`), 1))
	held := again.Held(p.Holdout.Seed, p.Holdout.Share)
	if points, known := again.Unseen(p, nil); known != len(again.Points)-len(held) || len(points) != len(held) {
		t.Errorf("its own: %d points unseen, %d known; want %d of %d", len(points), known, len(held), len(again.Points))
	}
	_, other := recorded(t, "1xbig,seed=2", 30*time.Second, ops...)
	d := dataOf(t, other)
	if points, known := d.Unseen(p, nil); known != 0 || len(points) != len(d.Points) {
		t.Errorf("measured again: %d of %d points unseen, %d known; want all and none", len(points), len(d.Points), known)
	}
}

// A part of its points is known where its recording is at hand. Without it nothing is said
// of points that may be either, but that a recording which began later has none of its own.
func TestAPartOfItsPointsIsKnownByTheRecording(t *testing.T) {
	skipShort(t)
	_, recording := recorded(t, "1xbig,seed=1", 30*time.Second, op.KindGEMM, op.KindNorm)
	whole := dataOf(t, recording)
	p := fitted(t, whole)
	half := dataOf(t, firstHalf(recording))
	kept := map[string]bool{}
	for _, x := range whole.Held(p.Holdout.Seed, p.Holdout.Share) {
		kept[x.Key] = true
	}
	points, known := half.Unseen(p, whole)
	if known+len(points) != len(half.Points) || known < len(half.Points)/2 {
		t.Errorf("%d points unseen and %d known of %d", len(points), known, len(half.Points))
	}
	for _, x := range points {
		if !kept[x.Key] {
			t.Errorf("%s was fitted", x.Key)
		}
	}
	later := bytes.Replace(firstHalf(recording), []byte(`"created":"2026-01-01`), []byte(`"created":"2026-01-02`), 1)
	p.Created = whole.Created
	for name, c := range map[string]struct {
		recording []byte
		doubtful  bool
	}{"the same time": {firstHalf(recording), true}, "a day later": {later, false}} {
		d := dataOf(t, c.recording)
		points, known := d.Unseen(p, nil)
		r, err := fit.Check(p, d, points, fit.DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		if known != 0 || r.Doubtful > 0 != c.doubtful || c.doubtful && (r.Doubtful != len(r.Pairs) || !strings.Contains(r.Warnings[0], "cannot be told")) {
			t.Errorf("%s: %d known, %d of %d doubtful, %q", name, known, r.Doubtful, len(r.Pairs), r.Warnings)
		}
	}
}

// firstHalf is the first half of a recording's lines.
func firstHalf(recording []byte) []byte {
	lines := bytes.SplitAfter(recording, []byte("\n"))
	return bytes.Join(lines[:len(lines)/2], nil)
}
