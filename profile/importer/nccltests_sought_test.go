package importer

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// soughtLines are all that are looked for by a text first.
func soughtLines() []sought {
	return []sought{
		ncclVersionLine, ncclProgramLine, ncclParamsLine, ncclRankLine, ncclRuntimeLine, ncclAverageLine, ncclBoundsLine,
		ncclElision, ncclForced, ncclLikeHeader,
	}
}

// passedOver says what a line matches that would not be put to it; "" for nothing.
func passedOver(line string) string {
	for _, s := range soughtLines() {
		if !s.in(line) && s.Regexp.MatchString(line) {
			return s.String()
		}
	}
	switch {
	case !mayBeTagged(line) && launcherTags.MatchString(line):
		return "a launcher's tag"
	case !mayBeLabelled(line) && launcherLabels.MatchString(line):
		return "a launcher's label"
	}
	return ""
}

// Whatever an expression matches holds one of its texts: on every line of all logs, with
// what stands before it taken off or not, and on lines that are put together of the parts
// that the expressions know.
func TestNCCLSought(t *testing.T) {
	lines := 0
	check := func(text string) {
		for line := range strings.Lines(text) {
			lines++
			line = strings.TrimRight(line, "\r\n")
			for _, l := range []string{line, strings.TrimSpace(line), stripLauncher(line)} {
				if what := passedOver(l); what != "" {
					t.Fatalf("%q matches %s, which is not tried", l, what)
				}
			}
		}
	}
	parts := []string{
		"", "#", " ", "# ", "\t", "Rank  0 ", "rank 0", "nThread 1 nGpus 8 ", "nThreads: 1 nGpus: 8 ", "minBytes 8 maxBytes 8 ", "nccl-tests version 2.17.9 ", "nccl-headers=22707 nccl-library=22707",
		"Collective test starting: all_reduce_perf", "NCCL version 2.27.7+cuda12.4", "RCCL version : 2.20.5", "# Avg bus bandwidth    : 1", "# Out of bounds values : 0 OK", "...", "....", "[...]", "…", "[…]", "<snip>", "[snip]",
		"NCCL_ALGO=Ring", "NCCL_P2P_DISABLE set by environment to 1", "Pid  1 on host device  0 [0x0f] A100", "uses device  0 [0x0f] A100", "[1,0]<stdout>:", "[0]", "[0]:", "3:", "host-1.a:", "host[3]:", "host 3:", "pod |", "pod|",
		"> ", "(head, rank=0, pid=71, ip=1.2.3.4) ", "2025-01-01T00:00:00Z ", "stdout F ", "stderr P", "2025-01-01 00:00:00.123+01:00: ", "Mon Jan  1 00:00:00 2025[1,0]<stderr>", "1024 256 float", "host:1:2 ", "|", ":", ">", "_x: 1", "é: 1",
	}
	for _, a := range parts {
		for _, b := range parts {
			check(a + b)
			for _, c := range parts {
				check(a + b + c)
			}
		}
	}
	made := lines
	err := filepath.WalkDir(filepath.Dir(ncclTraces(t, "nccl-tests")), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(path, ".gz") {
			return err
		}
		text, err := os.ReadFile(path)
		check(string(text))
		return err
	})
	if err != nil || lines < made+2000 {
		t.Errorf("%v, %d lines of logs", err, lines-made)
	}
}
