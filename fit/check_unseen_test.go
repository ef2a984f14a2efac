package fit_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
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
	if points, laws := again.Unseen(p); laws != len(p.Laws) || len(points) != len(held) {
		t.Errorf("its own: %d points unseen, %d laws known; want %d and %d", len(points), laws, len(held), len(p.Laws))
	}
	_, other := recorded(t, "1xbig,seed=2", 30*time.Second, ops...)
	d := dataOf(t, other)
	if points, laws := d.Unseen(p); laws != 0 || len(points) != len(d.Points) {
		t.Errorf("measured again: %d of %d points unseen, %d laws known; want all and none", len(points), len(d.Points), laws)
	}
}
