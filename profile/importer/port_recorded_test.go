package importer

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// No collective that anybody recorded is faster than its datasheet's port allows, with the
// fabric that the file of devices names and with the one that a fit takes from the rates
// alone: neither was a row left out for it.
func TestNoRecordedCollectiveBeatsItsPort(t *testing.T) {
	recorded, traces := dataFolder(t, "recorded"), dataFolder(t, "traces")
	points, bound := 0, map[string]bool{}
	for _, c := range []struct {
		pattern string // of a path
		format  string
		o       Options
	}{
		{filepath.Join(recorded, "aiconfigurator", "*", "*ccl.csv"), "table", Options{}},
		{filepath.Join(recorded, "aiconfigurator", "*", "custom_allreduce.csv"), "table", Options{}},
		{filepath.Join(recorded, "vidur", "a100_dgx", "*.csv"), "table", Options{Device: "a100_sxm"}},
		{filepath.Join(recorded, "vidur", "a100_pairwise_nvlink", "*.csv"), "table", Options{Device: "a100_pcie", Link: "nvlink_pairs"}},
		{filepath.Join(recorded, "vidur", "h100_pairwise_nvlink", "*.csv"), "table", Options{Device: "h100_nvl", Link: "nvlink_pairs"}},
		{filepath.Join(recorded, "vidur", "a40_pairwise_nvlink", "*.csv"), "table", Options{Device: "a40", Link: "nvlink_pairs"}},
		{filepath.Join(recorded, "galvatron", "*", "collectives.csv"), "table", Options{Device: "a100_sxm"}},
		{filepath.Join(traces, "nccl-tests", "*.log"), "nccl-tests", Options{}},
		{filepath.Join(traces, "nccl-tests", "*", "*.log"), "nccl-tests", Options{}},
		{filepath.Join(traces, "kineto", "*_8r_dlrm"), "kineto", Options{}},
		{filepath.Join(traces, "kineto", "*r_ddp_*.json.gz"), "kineto", Options{}},
	} {
		files, err := filepath.Glob(c.pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no file, %v", c.pattern, err)
		}
		f, err := Lookup(c.format)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			o, sources := c.o, filesOf(t, file)
			if c.format == "nccl-tests" {
				o = ncclOptions(file)
			}
			m, err := importInto(f, o, sources...)
			if err != nil && strings.Contains(err.Error(), " only, which no law covers") {
				continue
			}
			if err != nil && !errors.Is(err, ErrNothing) {
				t.Fatalf("%s: %v", file, err)
			}
			points += beatsNoPort(t, file, m, bound)
		}
	}
	t.Logf("%d points, bound by %d rates", points, len(bound))
	if points < 9000 || len(bound) < 10 {
		t.Errorf("%d points, bound by the rates %v: too few of those there are", points, bound)
	}
}

// filesOf are a file, or the files of a folder that belong together.
func filesOf(t *testing.T, path string) []Source {
	inside, err := filepath.Glob(filepath.Join(path, "*"))
	if err != nil {
		t.Fatal(err)
	}
	if len(inside) == 0 {
		return []Source{onDisk(t, path)}
	}
	var all []Source
	for _, p := range inside {
		all = append(all, onDisk(t, p))
	}
	return all
}

// beatsNoPort checks the collectives of an import, counts them, and notes the rates that
// bound them.
func beatsNoPort(t *testing.T, file string, m made, bound map[string]bool) (points int) {
	for _, d := range m.report.Dropped {
		if d.Reason == tooMuchLink {
			t.Errorf("%s: %d rows were left out as %s", file, d.Rows, d.Reason)
		}
	}
	ports := map[string]op.Port{}
	for _, g := range m.header.Groups {
		ports[g.Name] = g.Port(func(device string) op.Port {
			for _, d := range m.header.Devices {
				if d.Name == device {
					return d.Sheet.Port(g, d.Sheet.Fabric())
				}
			}
			return op.Port{}
		})
	}
	for _, p := range m.points {
		s, ok := p.Shape.(op.Grouped)
		port := ports[p.On]
		if !ok || port.PerS == 0 {
			continue
		}
		points++
		bound[port.PerS.String()] = true
		least := float64(port.Least(s.Kind(), s.Ranks(), op.Volume(s)))
		for _, seconds := range p.Times {
			if seconds < least {
				t.Errorf("%s: %s %+v on %s took %v s, less than %v", file, s.Kind(), s, p.On, seconds, least)
			}
		}
	}
	return points
}
