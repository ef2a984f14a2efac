package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Scripts run where nobody tries them first, such as on a machine with a GPU
// that is lent for ten minutes: every verb and flag in them exists.
func TestScriptsUseFlagsThatExist(t *testing.T) {
	scripts, err := filepath.Glob("../../docs/*.sh")
	if err != nil || len(scripts) < 4 {
		t.Fatalf("%d scripts, %v", len(scripts), err)
	}
	call := regexp.MustCompile(`(?:/evenkeel|\$EVENKEEL|\$BIN)" (?:-q )?([a-z]+)\b([^\n|>]*)`)
	calls := 0
	for _, script := range scripts {
		data, err := os.ReadFile(script)
		if err != nil {
			t.Fatal(err)
		}
		calls += knownCalls(t, script, string(data), call)
	}
	if calls < 20 {
		t.Errorf("%d calls were found: the pattern misses most", calls)
	}
}

// knownCalls counts the calls of evenkeel in a text, whose pattern gives a verb and what follows
// it, and fails on verbs and flags that there are not.
func knownCalls(t *testing.T, where, text string, call *regexp.Regexp) (calls int) {
	t.Helper()
	flag := regexp.MustCompile(`(?:^| )--([a-z][a-z-]*)`)
	for _, m := range call.FindAllStringSubmatch(strings.ReplaceAll(text, "\\\n", " "), -1) {
		c, _, err := (&app{}).root().Find([]string{m[1]})
		if err != nil || c.Name() != m[1] {
			t.Errorf("%s: no verb %q", where, m[1])
			continue
		}
		calls++
		for _, f := range flag.FindAllStringSubmatch(m[2], -1) {
			if c.Flag(f[1]) == nil {
				t.Errorf("%s: evenkeel %s has no --%s", where, m[1], f[1])
			}
		}
	}
	return calls
}

// What a flag's help says of other flags is of flags that the same verb has, although verbs
// share some.
func TestFlagsNameFlagsThatExist(t *testing.T) {
	flag := regexp.MustCompile(`--([a-z][a-z-]*)`)
	for _, c := range (&app{}).root().Commands() {
		for _, m := range flag.FindAllStringSubmatch(c.Flags().FlagUsages(), -1) {
			if c.Flag(m[1]) == nil {
				t.Errorf("the flags of evenkeel %s speak of --%s, which is none of them", c.Name(), m[1])
			}
		}
	}
}
