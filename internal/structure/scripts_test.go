package structure

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// Scripts are parsed by the shell they name, without being run.
func TestScriptsParse(t *testing.T) {
	var scripts []string
	for _, pattern := range []string{"../../docs/*.sh", "../../docs/*/*.sh", "../../.ci/run"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		scripts = append(scripts, found...)
	}
	if len(scripts) < 5 {
		t.Fatalf("only %q", scripts)
	}
	for _, s := range scripts {
		if out, err := exec.Command("bash", "-n", s).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", s, err, out)
		}
	}
}
