package recommend

import (
	"fmt"
	"strings"

	"github.com/agnivade/levenshtein"
)

// Unknown is the error of a name that is none of the strategies'. It lists them, and the
// one that was perhaps meant.
func Unknown(name string, names []string) error {
	near, distance := "", max(2, len(name)/3)+1
	for _, known := range names {
		if d := levenshtein.ComputeDistance(name, known); d < distance {
			near, distance = known, d
		}
	}
	hint := ""
	if near != "" {
		hint = fmt.Sprintf("; did you mean %q?", near)
	}
	return fmt.Errorf("unknown strategy %q%s; the strategies are %s", name, hint, strings.Join(names, ", "))
}
