package spelling

import (
	"strings"
	"testing"
)

func TestNearest(t *testing.T) {
	known := []string{"attn_fwd", "gemm", "burst", "lo", "serve", "solve", "name", "usp", "link"}
	for name, want := range map[string]string{
		"gem": "gemm", "GEMM": "gemm", "attn_fdw": "attn_fwd", "low": "lo", "brust": "burst",
		"slove": "serve",                                    // two letters off both: the first
		"":      "", "x": "", "attention": "", "lola": "lo", // half of the letters
		"geese": "",                                                                          // three of five
		"rate":  "", "fsdp": "", "lnik": "link", "lick": "link", "nmae": "name", "us": "usp", // two of four
		strings.Repeat("gemm", 26): "",
	} {
		if got := Nearest(name, known); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func TestSuggest(t *testing.T) {
	for want, names := range map[string][]string{"": {""}, ` (did you mean "a"?)`: {"a"}, ` (did you mean "a" or "b"?)`: {"a", "", "b"}} {
		if got := Suggest(names...); got != want {
			t.Errorf("%q: %q, want %q", names, got, want)
		}
	}
	if got := Hint("gem", []string{"gemm"}); got != ` (did you mean "gemm"?)` {
		t.Error(got)
	}
}
