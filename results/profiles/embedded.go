package profiles

import (
	"embed"
	"io/fs"
	"strings"

	"github.com/evenkeel/evenkeel/internal/doc"
)

// embedded is a document of the binary: its name without the suffix, where it came
// from, and what it says.
type embedded[D any] struct {
	name     string
	input    doc.Input
	document *D
}

// decoded reads all embedded documents of one kind, by name. A broken one is a fault
// of the program's own binary, so it panics.
func decoded[D any, P interface {
	*D
	doc.Document
}](files embed.FS, suffix string) []embedded[D] {
	names, err := fs.Glob(files, "*"+suffix)
	must(err)
	var all []embedded[D]
	for _, name := range names {
		data, err := files.ReadFile(name)
		must(err)
		var d D
		must(doc.Decode(name, data, P(&d)))
		all = append(all, embedded[D]{
			name:  strings.TrimSuffix(name, suffix),
			input: doc.Input{Path: "embedded/" + name, SHA256: doc.HashBytes(data)}, document: &d,
		})
	}
	return all
}

func must(err error) {
	if err != nil {
		panic("profiles: " + err.Error())
	}
}
