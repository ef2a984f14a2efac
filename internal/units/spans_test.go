package units

import "testing"

func TestSpans(t *testing.T) {
	for want, numbers := range map[string][]int{"": nil, "3": {3}, "0-1": {0, 1}, "0-2,64-65,70": {0, 1, 2, 64, 65, 70}, "0,2,4-5": {0, 2, 4, 5}} {
		if got := Spans(numbers); got != want {
			t.Errorf("%v: %q, want %q", numbers, got, want)
		}
	}
}
