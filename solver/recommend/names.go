package recommend

import (
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/internal/spelling"
)

// Known returns an error, as of Unknown, if a name is none of the strategies'; it may be empty.
func Known[S Strategy](name string, strategies []S) error {
	var names []string
	for _, s := range strategies {
		names = append(names, s.Name())
	}
	if name == "" || slices.Contains(names, name) {
		return nil
	}
	return Unknown(name, names)
}

// Unknown is the error of a name that is none of the strategies'. It lists them, and the
// one that was perhaps meant.
func Unknown(name string, names []string) error {
	return fmt.Errorf("unknown strategy %q%s; the strategies are %s", name, spelling.Hint(name, names), strings.Join(names, ", "))
}
