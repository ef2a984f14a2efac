package main

import (
	"errors"
	"testing"
)

func TestAFurtherCalibrationLiesBesideTheFirst(t *testing.T) {
	for _, c := range []struct {
		recordings []string
		want       string
	}{
		{[]string{"prof/calibration.rec.jsonl"}, "--out prof"},
		{[]string{"a/b/calibration.rec.jsonl", "a/./b/calibration-2.rec.jsonl"}, "--out a/b"},
		{[]string{"calibration.rec.jsonl"}, "--out ."},
		{[]string{"calibration/calibration.rec.jsonl"}, ""}, // its own default
		{[]string{"a/calibration.rec.jsonl", "b/calibration.rec.jsonl"}, ""},
		{[]string{"prof/imported.rec.jsonl"}, ""},
		{[]string{"my prof/calibration.rec.jsonl"}, ""},
		{nil, ""},
	} {
		if got := calibratedIn(c.recordings...); got != c.want {
			t.Errorf("%q: %q, want %q", c.recordings, got, c.want)
		}
	}
}

// What an error is stays what it is.
func TestAdvisingKeepsTheKindOfAnError(t *testing.T) {
	err := advising(usagef("no law; measure it: evenkeel calibrate --fresh --only norm, then fit again"), "--out prof")
	if got, want := err.Error(), "no law; measure it: evenkeel calibrate --out prof --fresh --only norm, then fit again"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if _, ok := errors.AsType[usageError](err); !ok {
		t.Error("a usage error is none any longer")
	}
}
