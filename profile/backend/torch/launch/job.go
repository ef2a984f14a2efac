package launch

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"strings"
	"text/template"
	"time"
)

//go:embed templates
var templates embed.FS

// jobKinds are the kinds of job and their templates.
var jobKinds = []struct{ kind, file string }{
	{"slurm", "slurm.sh.tmpl"},
	{"torchrun", "torchrun.sh.tmpl"},
	{"k8s", "k8s.yaml.tmpl"},
}

// startMargin is granted beside twice the budget for images, interpreters and
// imports, which take minutes on a shared file system.
const startMargin = 10 * time.Minute

// JobOptions say what a printed job shall run.
type JobOptions struct {
	Nodes       int           // 1 to 65,536
	GPUsPerNode int           // 1 to 65,536
	Out         string        // folder of the recording; absolute for k8s, where it is mounted
	Budget      time.Duration // time to measure for
	Args        []string      // further arguments of calibrate
	Image       string        // container image with evenkeel and torch; k8s only
}

// OptionError is a field of JobOptions that no job can be made of.
type OptionError struct {
	Field, Value, Want string
}

// Error implements error.
func (e *OptionError) Error() string {
	return fmt.Sprintf("%s %s: want %s", e.Field, e.Value, e.Want)
}

// jobText is what the templates see.
type jobText struct {
	JobOptions
	Minutes, Seconds int64
}

// Job returns the text of a job that runs `evenkeel calibrate` with one agent a
// node: for "slurm" an sbatch script, for "torchrun" a script to be run on each
// node, for "k8s" the YAML of an Indexed Job. The text starts nothing by itself.
// Errors are *OptionError.
func Job(kind string, o JobOptions) (string, error) {
	file := ""
	var kinds []string
	for _, k := range jobKinds {
		if kinds = append(kinds, k.kind); k.kind == kind {
			file = k.file
		}
	}
	if file == "" {
		return "", &OptionError{"kind", fmt.Sprintf("%q", kind), "one of " + strings.Join(kinds, ", ")}
	}
	if err := o.validate(kind); err != nil {
		return "", err
	}
	limit := 2*o.Budget + startMargin
	text := jobText{o, int64((limit + time.Minute - 1) / time.Minute), int64((limit + time.Second - 1) / time.Second)}
	t, err := template.ParseFS(templates, path.Join("templates", file))
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	err = t.Execute(&b, text)
	return b.String(), err
}

func (o JobOptions) validate(kind string) error {
	switch {
	case o.Nodes < 1 || o.Nodes > maxTasks:
		return &OptionError{"nodes", fmt.Sprint(o.Nodes), fmt.Sprintf("1 to %d", maxTasks)}
	case o.GPUsPerNode < 1 || o.GPUsPerNode > maxTasks:
		return &OptionError{"GPUs a node", fmt.Sprint(o.GPUsPerNode), fmt.Sprintf("1 to %d", maxTasks)}
	case o.Budget <= 0 || o.Budget > 30*24*time.Hour:
		return &OptionError{"budget", o.Budget.String(), "more than 0 and at most 30 days"}
	case o.Out == "" || strings.ContainsAny(o.Out, "\n\r\x00"):
		return &OptionError{"out", fmt.Sprintf("%q", o.Out), "a folder, in one line"}
	case kind == "k8s" && !path.IsAbs(o.Out):
		return &OptionError{"out", fmt.Sprintf("%q", o.Out), "an absolute path, at which the volume is mounted, such as /out"}
	case kind == "k8s" && o.Image == "":
		return &OptionError{"image", `""`, "a container image with evenkeel and torch: give --image"}
	}
	for _, a := range o.Args {
		if strings.ContainsRune(a, 0) {
			return &OptionError{"argument", fmt.Sprintf("%q", a), "no zero byte"}
		}
	}
	return nil
}

// command is the agent's command line.
func (j jobText) command() []string {
	c := []string{"evenkeel", "calibrate", "--backend", "torch", "--budget", j.Budget.String(), "--out", j.Out}
	return append(c, j.Args...)
}

// ShellCommand is the command quoted for a POSIX shell.
func (j jobText) ShellCommand() string {
	var words []string
	for _, word := range j.command() {
		words = append(words, Quote(word))
	}
	return strings.Join(words, " ")
}

// ShellOut is the output folder as the command line shows it.
func (j jobText) ShellOut() string { return Quote(j.Out) }

// Last is the largest node number.
func (j jobText) Last() int { return j.Nodes - 1 }

// YAMLCommand is the command as a flow sequence. Kubernetes would put a
// variable in place of $(NAME); $$( stands for $( there.
func (j jobText) YAMLCommand() (string, error) {
	words := j.command()
	for i, word := range words {
		words[i] = strings.ReplaceAll(word, "$(", "$$(")
	}
	return asYAML(words)
}

// YAMLImage is the image as a scalar.
func (j jobText) YAMLImage() (string, error) { return asYAML(j.Image) }

// YAMLOut is the mount path as a scalar.
func (j jobText) YAMLOut() (string, error) { return asYAML(j.Out) }

// asYAML writes a value as JSON, which every YAML reader takes.
func asYAML(v any) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return strings.TrimSpace(b.String()), err
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// Quote protects a word from a POSIX shell.
func Quote(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
