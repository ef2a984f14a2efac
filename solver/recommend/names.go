package recommend

import (
	"fmt"
	"strings"

	"github.com/evenkeel/evenkeel/internal/spelling"
)

// Unknown is the error of a name that is none of the strategies'. It lists them, and the
// one that was perhaps meant.
func Unknown(name string, names []string) error {
	return fmt.Errorf("unknown strategy %q%s; the strategies are %s", name, spelling.Hint(name, names), strings.Join(names, ", "))
}
