package structure

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What CONTRIBUTING.md names lies where it says, and what it says there is none of is not
// there: the first format of recordings came and "(None yet.)" stayed.
func TestContributingNamesWhatIsThere(t *testing.T) {
	data, err := os.ReadFile("../../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	place := regexp.MustCompile("`([A-Za-z0-9_.-]+(?:/[A-Za-z0-9_-]+(?:\\.[a-z]+)?)+)(?:/\\.\\.\\.)?`")
	for _, item := range strings.Split(string(data), "\n- ") {
		there := !strings.Contains(item, "(None yet.)")
		for _, m := range place.FindAllStringSubmatch(item, -1) {
			if _, err := os.Stat(filepath.Join("../..", m[1])); (err == nil) != there {
				t.Errorf("CONTRIBUTING.md: %s: %v, want it there: %v", m[1], err, there)
			}
		}
	}
}
