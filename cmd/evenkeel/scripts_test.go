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
	flag := regexp.MustCompile(`(?:^| )--([a-z][a-z-]*)`)
	calls := 0
	for _, script := range scripts {
		data, err := os.ReadFile(script)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range call.FindAllStringSubmatch(strings.ReplaceAll(string(data), "\\\n", " "), -1) {
			c, _, err := (&app{}).root().Find([]string{m[1]})
			if err != nil || c.Name() != m[1] {
				t.Errorf("%s: no verb %q", script, m[1])
				continue
			}
			calls++
			for _, f := range flag.FindAllStringSubmatch(m[2], -1) {
				if c.Flag(f[1]) == nil {
					t.Errorf("%s: evenkeel %s has no --%s", script, m[1], f[1])
				}
			}
		}
	}
	if calls < 20 {
		t.Errorf("%d calls were found: the pattern misses most", calls)
	}
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
