package emit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// The two files that stand for Megatron-LM: schedulers that are known by name, of which the data
// loader's is asked with what it has, and a script that tells its arguments.
const (
	schedule = `class DpBalancedScheduler:
    def __init__(self, most):
        self.most = most
    def get_groups_and_subsamples(self, sample_id_seqlens):
        raise SystemExit("the framework's own scheduler was asked")

class DefaultDynamicCPScheduler(DpBalancedScheduler):
    pass

scheduler_map = {"dp_balanced": DpBalancedScheduler, "default_dynamic_cp": DefaultDynamicCPScheduler}
`
	pretrain = `import json, sys
from megatron.core.datasets import data_schedule
name = sys.argv[sys.argv.index("--sequence-packing-scheduler") + 1]
with open("batch.json") as file:
    samples = json.load(file)
groups = data_schedule.scheduler_map[name](1).get_groups_and_subsamples(list(enumerate(samples)))
print(json.dumps({"arguments": sys.argv[1:], "groups": groups}))
`
)

// ranScript is what planned_gpt.py of docs/frameworks.md has the framework run of a text.
func ranScript(t *testing.T, text string, batch []units.Tokens) (out []byte, err error) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	page, err := os.ReadFile("../../docs/frameworks.md")
	if err != nil {
		t.Fatal(err)
	}
	_, script, found := strings.Cut(string(page), "```python\n")
	script, _, ended := strings.Cut(script, "```")
	if !found || !ended {
		t.Fatal("docs/frameworks.md has no script")
	}
	samples, err := json.Marshal(batch)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, data := range map[string]string{
		"planned_gpt.py": script, "plan.json": text, "pretrain_gpt.py": pretrain, "batch.json": string(samples),
		"megatron/__init__.py": "", "megatron/core/__init__.py": "", "megatron/core/datasets/__init__.py": "", "megatron/core/datasets/data_schedule.py": schedule,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.Command(python, "planned_gpt.py", "plan.json", "--tokenizer-type", "NullTokenizer")
	c.Dir = dir
	var bad bytes.Buffer
	c.Stderr = &bad
	if out, err = c.Output(); err != nil {
		err = fmt.Errorf("%w: %s", err, bad.String())
	}
	return out, err
}

// The script of the guide hands Megatron-LM the arguments and the groups of an emitted plan, and
// refuses samples that are not the plan's.
func TestTheScriptRunsThePlan(t *testing.T) {
	profile, job := world.GPUJob(t, "2x4 h100_sxm", 1)
	lengths := []units.Tokens{30001, 8000, 20000, 500}
	f, _ := Lookup("megatron")
	e, err := stagedEmission(t, f, piped(t, profile, job, "1f1b", lengths...), profile)
	if err != nil {
		t.Fatal(err)
	}
	var x stagedText
	if err := json.Unmarshal([]byte(e.Text), &x); err != nil {
		t.Fatal(err)
	}
	for _, batch := range [][]units.Tokens{lengths, x.Lengths} { // padded by the loader, to no more than planned
		out, err := ranScript(t, e.Text, batch)
		if err != nil {
			t.Fatal(err)
		}
		var ran struct {
			Arguments []string
			Groups    [][][]int
		}
		if err := json.Unmarshal(out, &ran); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		if diff := cmp.Diff(x.Groups, ran.Groups); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(append([]string{"--tokenizer-type", "NullTokenizer"}, x.Arguments...), ran.Arguments); diff != "" {
			t.Error(diff)
		}
	}
	longer := slices.Clone(x.Lengths)
	longer[3]++
	for name, batch := range map[string][]units.Tokens{"longer": longer, "fewer": x.Lengths[:3], "more": append(x.Lengths, 1)} {
		if _, err := ranScript(t, e.Text, batch); err == nil || !strings.Contains(err.Error(), "the samples are not the plan's") {
			t.Errorf("%s samples: %v", name, err)
		}
	}
}
