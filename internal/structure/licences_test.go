package structure

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// THIRD_PARTY.md lists the modules that the binary links to, at their versions. It holds those
// of Linux on amd64: elsewhere a module more or less may be linked.
func TestThirdPartyListsWhatIsLinked(t *testing.T) {
	list := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} | {{.Version}}{{end}}{{end}}", "./cmd/evenkeel")
	list.Dir = "../.."
	list.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=1")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	linked := strings.Split(strings.TrimSpace(string(out)), "\n")
	slices.Sort(linked)
	linked = slices.DeleteFunc(slices.Compact(linked), func(m string) bool { return m == "" })
	data, err := os.ReadFile("../../THIRD_PARTY.md")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for line := range strings.Lines(string(data)) {
		if cells := strings.Split(line, " | "); len(cells) == 4 && strings.Contains(cells[0], "/") {
			listed = append(listed, strings.TrimPrefix(cells[0], "| ")+" | "+cells[1])
		}
	}
	slices.Sort(listed)
	if !slices.Equal(linked, listed) {
		t.Errorf("THIRD_PARTY.md lists\n%s\nand linked are\n%s", strings.Join(listed, "\n"), strings.Join(linked, "\n"))
	}
}

// The Python package carries the licence in its wheels, from a copy.
func TestPythonHasTheLicence(t *testing.T) {
	root, err := os.ReadFile("../../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	if own, err := os.ReadFile("../../python/LICENSE"); err != nil || string(own) != string(root) {
		t.Errorf("python/LICENSE is not LICENSE: %v", err)
	}
}
