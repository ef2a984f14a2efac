package main

import (
	"bytes"
	"io"
	"os"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/solver"
	"github.com/evenkeel/evenkeel/solver/batch"
	"github.com/evenkeel/evenkeel/solver/multitask"
	"github.com/evenkeel/evenkeel/solver/pipeline"
)

// content is what an output writes, and so what of files that are there it may replace.
type content struct {
	name   string                 // such as "a timeline", for messages
	schema string                 // of a document
	like   func(head []byte) bool // of anything else: whether a file that begins so is of the kind
}

func document(schema string) content { return content{name: "an " + kindOf(schema), schema: schema} }

var (
	imported = content{name: "an imported recording", schema: profile.RecordingSchema}
	timeline = content{name: "a timeline", like: func(head []byte) bool { return bytes.Contains(head, []byte(`"traceEvents"`)) }}
	junit    = content{name: "a JUnit report", like: func(head []byte) bool { return bytes.Contains(head, []byte("<testsuites")) }}
	svg      = content{name: "a plot as SVG", like: func(head []byte) bool { return bytes.Contains(head, []byte("<svg")) }}
	png      = content{name: "a plot as PNG", like: func(head []byte) bool { return bytes.HasPrefix(head, []byte("\x89PNG")) }}
	drafts   = content{name: "a cluster.yaml", schema: costmodel.ClusterSchema, like: func(head []byte) bool { return bytes.Contains(head, []byte("evenkeel.cluster/")) }}
)

// textLike is a text whose kind shows up to its first number, as what frameworks read does. What
// somebody wrote above that in a file stays what it is.
func textLike(name, text string) content {
	begins := text
	if at := strings.IndexAny(text, "0123456789"); at >= 0 {
		begins = text[:at]
	}
	return content{name: name, like: func(head []byte) bool { return bytes.Contains(head, []byte(begins)) }}
}

// kindOf is a schema without its version.
func kindOf(schema string) string {
	kind, _, _ := strings.Cut(schema, "/")
	return kind
}

// replaces refuses to put what an output writes in the place of something else: what is
// there may have taken hours to measure, and a name is soon completed wrongly. Files that
// are empty or no regular ones lose nothing.
func (o output) replaces() error {
	if o.what.name == "" {
		return nil
	}
	head, err := headOf(o.path)
	if err != nil || len(bytes.TrimSpace(head)) == 0 {
		return err
	}
	if holds := o.what.loses(head); holds != "" {
		return usagef("%s %s: holds %s, and %s would take its place: choose another name, or remove that file first", o.flag, o.path, holds, o.what.name)
	}
	return nil
}

// schema is that of the plan which the flags of solve ask for.
func (o problem) schema() string {
	switch {
	case o.tasks != "":
		return multitask.Schema
	case o.staged.on:
		return pipeline.Schema
	case o.sequences.file != "":
		return batch.Schema
	}
	return solver.PlanSchema
}

// headOf is what a regular file begins with; nothing of what is none, or is not there.
func headOf(path string) ([]byte, error) {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, openError(err)
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, sniffed))
	return head, openError(err)
}

// loses says what is in a file that begins so, where it is another kind of thing.
func (c content) loses(head []byte) string {
	schema, err := doc.SchemaOf(head)
	known := err == nil && ours(schema)
	switch {
	case known && kindOf(schema) != kindOf(c.schema):
		return "an " + kindOf(schema)
	case known && c.schema == profile.RecordingSchema && !wasImported(head):
		return "a recording of what was measured"
	case known || c.like != nil && c.like(head):
		return ""
	case c.like == nil:
		return "no document of evenkeel"
	}
	return "something else"
}

// wasImported says whether a recording that begins so was made of others' files. Of many
// software versions its header is longer than what is looked at.
func wasImported(head []byte) bool {
	return bytes.Contains(head, []byte(`"backend":"`+profile.ImportPrefix))
}

// notDocument refuses to add text to a document of ours, which nothing could read afterwards.
func (o output) notDocument() error {
	head, err := headOf(o.path)
	if err != nil {
		return err
	}
	if schema, err := doc.SchemaOf(head); err == nil && ours(schema) {
		return usagef("%s %s: is an %s, which lines of text would break; choose another name", o.flag, o.path, kindOf(schema))
	}
	return nil
}

func ours(schema string) bool { return strings.HasPrefix(schema, "evenkeel.") }
