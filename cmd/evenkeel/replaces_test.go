package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/profile"
)

// What an output is the newer version of may be replaced, and what holds nothing.
func TestOutputsReplaceTheirOwnKind(t *testing.T) {
	long := `{"schema":"` + profile.RecordingSchema + `","backend":"import:table","software":"` + strings.Repeat("v", 2*sniffed) + `"}` + "\n"
	args := textLike("what megatron reads", "--tensor-model-parallel-size 1\n--seq-length 4096\n")
	for name, c := range map[string]struct {
		what  content
		there string
		want  bool
	}{
		"a recording, imported, of a long header": {imported, long, true},
		"a recording, imported, over a measured":  {imported, strings.Replace(long, "import:table", "cpu", 1), false},
		"a profile over a recording":              {document(costmodel.ProfileSchema), long, false},
		"a profile over a line end":               {document(costmodel.ProfileSchema), " \n", true},
		"a profile over notes":                    {document(costmodel.ProfileSchema), "notes\n", false},
		"a cluster over one in JSON":              {drafts, `{"schema": "evenkeel.cluster/v1", "nodes": []}`, true},
		"a cluster over one in YAML":              {drafts, "# ours\nschema: evenkeel.cluster/v1\n", true},
		"a cluster over a profile":                {drafts, `{"schema": "evenkeel.profile/v1"}`, false},
		"arguments over others":                   {args, "--tensor-model-parallel-size 2\n", true},
		"arguments over edited ones":              {args, "# our run\n--tensor-model-parallel-size 2\n", true},
		"arguments over notes":                    {args, "notes on --tensor-model-parallel\n", false},
	} {
		path := filepath.Join(t.TempDir(), "there")
		if err := os.WriteFile(path, []byte(c.there), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := (output{"-o", path, c.what}).replaces(); (err == nil) != c.want {
			t.Errorf("%s: %v, want it to be replaced: %v", name, err, c.want)
		}
	}
}
