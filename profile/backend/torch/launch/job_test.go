package launch

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
)

var update = flag.Bool("update", false, "write the golden files anew")

// awkward needs quoting everywhere.
var awkward = JobOptions{
	Nodes: 4, GPUsPerNode: 8, Out: "/shared/it's here", Budget: 10 * time.Minute,
	Args: []string{"--only", "attn_fwd,gemm", "--model", "a b\"$HOME` $(HOME)"}, Image: "example.org/evenkeel:1",
}

func TestJobGolden(t *testing.T) {
	for _, k := range jobKinds {
		t.Run(k.kind, func(t *testing.T) {
			got, err := Job(k.kind, awkward)
			if err != nil {
				t.Fatal(err)
			}
			name := filepath.Join("testdata", strings.TrimSuffix(k.file, ".tmpl"))
			if *update {
				if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("differs from %s (run with -update, then read the change):\n%s", name, got)
			}
		})
	}
}

func TestShellScriptsParse(t *testing.T) {
	bash := findBash(t)
	for _, kind := range []string{"slurm", "torchrun"} {
		text, err := Job(kind, awkward)
		if err != nil {
			t.Fatal(err)
		}
		check := exec.Command(bash, "-n")
		check.Stdin = strings.NewReader(text)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", kind, err, out)
		}
	}
}

func findBash(t *testing.T) string {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash on this machine")
	}
	return bash
}

// TestScriptsPassArguments runs the scripts with a launcher that prints its
// arguments, so quoting is checked by a shell and not by eye.
func TestScriptsPassArguments(t *testing.T) {
	bash := findBash(t)
	want := "evenkeel|calibrate|--backend|torch|--budget|10m0s|--out|/shared/it's here|--only|attn_fwd,gemm|--model|a b\"$HOME` $(HOME)|"
	for _, kind := range []string{"slurm", "torchrun"} {
		out, err := runScript(t, bash, kind, "3")
		if err != nil {
			t.Fatalf("%s: %v: %s", kind, err, out)
		}
		if !strings.HasSuffix(out, want) {
			t.Errorf("%s: got %s, want it to end in %s", kind, out, want)
		}
		if kind == "torchrun" && !strings.Contains(out, "--nnodes=4|--node_rank=3|") {
			t.Errorf("torchrun got %s", out)
		}
	}
	for _, node := range []string{"4", "x", "99999999999999999999"} {
		out, err := runScript(t, bash, "torchrun", node)
		if err == nil || !strings.Contains(out, "node "+node+": want 0 to 3") {
			t.Errorf("node %s: %v: %s", node, err, out)
		}
	}
}

// runScript runs a job's text with fake launchers on its PATH.
func runScript(t *testing.T, bash, kind, node string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	for _, launcher := range []string{"srun", "torchrun"} {
		if err := os.WriteFile(filepath.Join(dir, launcher), []byte("#!/bin/sh\nprintf '%s|' \"$@\"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	text, err := Job(kind, awkward)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	run := exec.CommandContext(ctx, bash, "-s", node)
	run.Env = []string{"PATH=" + dir + ":/usr/bin:/bin", "MASTER=h0"}
	run.Stdin = strings.NewReader(text)
	out, err := run.CombinedOutput()
	return string(out), err
}

// TestKubernetesJobIsDetected reads the YAML back and feeds its environment to
// Detect: the two must agree about every variable.
func TestKubernetesJobIsDetected(t *testing.T) {
	text, err := Job("k8s", awkward)
	if err != nil {
		t.Fatal(err)
	}
	var job struct {
		Kind string
		Spec struct {
			Completions int
			Template    struct {
				Spec struct {
					Containers []struct {
						Image   string
						Command []string
						Env     []struct{ Name, Value string }
					}
				}
			}
		}
	}
	// The shell must not see $HOME, nor Kubernetes $(HOME).
	if want := `"a b\"$HOME` + "`" + ` $$(HOME)"`; !strings.Contains(text, want) {
		t.Errorf("no %s in\n%s", want, text)
	}
	if err := yaml.Unmarshal([]byte(text[strings.Index(text, "---\n")+4:]), &job); err != nil {
		t.Fatal(err)
	}
	c := job.Spec.Template.Spec.Containers[0]
	if job.Kind != "Job" || job.Spec.Completions != 4 || c.Image != awkward.Image || len(c.Command) != 8+len(awkward.Args) {
		t.Errorf("read back: %+v", job)
	}
	vars := map[string]string{}
	for _, e := range c.Env {
		vars[e.Name] = e.Value
	}
	vars["RANK"] = "3" // from the pod's annotation
	w, err := Detect(env(vars))
	want := World{Source: PyTorchJob, Task: 3, Tasks: 4, LocalTasks: 1, Host: "evenkeel-0.evenkeel", Port: 29500}
	if err != nil || *w != want {
		t.Errorf("got %+v, %v; want %+v", w, err, want)
	}
}

func TestJobRefuses(t *testing.T) {
	for want, change := range map[string]func(*JobOptions){
		"nodes 0: want 1 to 65536":               func(o *JobOptions) { o.Nodes = 0 },
		"GPUs a node -1: want 1 to 65536":        func(o *JobOptions) { o.GPUsPerNode = -1 },
		"budget 0s: want more than 0":            func(o *JobOptions) { o.Budget = 0 },
		`out "": want a folder`:                  func(o *JobOptions) { o.Out = "" },
		`out "a\nb": want a folder, in one line`: func(o *JobOptions) { o.Out = "a\nb" },
		`out "prof": want an absolute path`:      func(o *JobOptions) { o.Out = "prof" },
		`image "": want a container image`:       func(o *JobOptions) { o.Image = "" },
		`argument "a\x00": want no zero byte`:    func(o *JobOptions) { o.Args = []string{"a\x00"} },
	} {
		o := awkward
		change(&o)
		var bad *OptionError
		if _, err := Job("k8s", o); !errors.As(err, &bad) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if _, err := Job("pbs", awkward); err == nil || err.Error() != `kind "pbs": want one of slurm, torchrun, k8s` {
		t.Errorf("got %v", err)
	}
}

// TestTimeLimit: twice 90 s and ten minutes of start are 13 minutes.
func TestTimeLimit(t *testing.T) {
	o := awkward
	o.Budget = 90 * time.Second
	text, err := Job("slurm", o)
	if err != nil || !strings.Contains(text, "#SBATCH --time=13\n") {
		t.Errorf("%v: %s", err, text)
	}
}
