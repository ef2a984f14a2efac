package structure

import (
	"os"
	"strings"
	"testing"
)

// What the code imports is required directly in go.mod, and nothing else is. Go mod tidy, which
// would say so as well, downloads the modules that tests of others need.
func TestDirectRequirementsAreImported(t *testing.T) {
	data, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	direct := map[string]bool{} // by module: whether it is required as such
	for line := range strings.Lines(string(data)) {
		words := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(words) >= 2 && strings.Contains(words[0], "/") && strings.HasPrefix(words[1], "v") {
			direct[words[0]] = !strings.HasSuffix(line, "// indirect\n")
		}
	}
	imported := map[string]string{}
	for _, f := range sources(t) {
		for _, path := range imports(f) {
			longest := ""
			for m := range direct {
				if (path == m || strings.HasPrefix(path, m+"/")) && len(m) > len(longest) {
					longest = m
				}
			}
			if longest != "" {
				imported[longest] = f.path
			}
		}
	}
	for m, required := range direct {
		if by := imported[m]; required != (by != "") {
			t.Errorf("go.mod: %s is required directly: %v, imported by: %q; go mod tidy mends it", m, required, by)
		}
	}
}
