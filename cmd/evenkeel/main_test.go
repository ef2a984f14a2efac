package main

import (
	"errors"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/evenkeel/evenkeel/internal/keyed"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"evenkeel": main})
}

// The stories: one file a user's errand, failures too. `exits 3 evenkeel ...`
// runs a command that must end with exactly that code.
func TestStories(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error { // what its own runtime goes by, which stories would start without
			for _, name := range []string{"GOGC", "GORACE"} {
				if v, set := os.LookupEnv(name); set {
					env.Setenv(name, v)
				}
			}
			return nil
		},
		UpdateScripts: slices.Contains(os.Args, "-update"),
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"rekey": rekey,
			"exits": func(ts *testscript.TestScript, neg bool, args []string) {
				want, err := strconv.Atoi(args[0])
				if err != nil || neg {
					ts.Fatalf("usage: exits CODE command args...")
				}
				got := 0
				var exit *exec.ExitError
				if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
					got = exit.ExitCode()
				} else if err != nil {
					ts.Fatalf("%v", err)
				}
				if got != want {
					ts.Fatalf("exit code %d, want %d", got, want)
				}
			},
		},
	})
}

// rekey gives every point of a recording that a story changed the key of what it is now.
func rekey(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: rekey recording")
	}
	data := ts.ReadFile(args[0])
	header := regexp.MustCompile(`"fingerprint":"([^"]*)"`).FindStringSubmatch(data)
	var out strings.Builder
	for line := range strings.Lines(data) {
		out.WriteString(keyed.Line(header[1], line))
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(out.String()), 0o644))
}
