package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/importer"
	"github.com/spf13/cobra"
)

// loadProfile reads and validates a profile.
func loadProfile(path string) (*costmodel.Profile, error) {
	var p costmodel.Profile
	if err := doc.Load(path, &p); err != nil {
		return nil, err
	}
	return &p, nil
}

// loadTraining reads whole training steps, and finds the name by which recordings that others made
// have their GPU: its driver may say "NVIDIA H100 80GB HBM3", and they h100_sxm.
func loadTraining(path string) (*fit.Training, error) {
	t := new(fit.Training)
	if err := doc.Load(path, t); err != nil {
		return nil, err
	}
	if m, ok := importer.ModelOf(t.GPU); ok {
		t.Model = m.Name
	}
	return t, nil
}

// loadData reads recordings into one data set.
func loadData(paths []string) (*fit.Data, error) { return loadOnly(paths, nil) }

// loadOnly is loadData of what was measured under some software; nil: any.
func loadOnly(paths, stacks []string) (*fit.Data, error) {
	if err := notTwice(paths); err != nil {
		return nil, err
	}
	d := fit.NewData()
	d.Only(stacks)
	for _, path := range paths {
		if err := addRecording(d, path); err != nil {
			return nil, err
		}
	}
	if err := d.Met(); err != nil {
		return nil, usagef("--stack %w", err)
	}
	return d, nil
}

// notTwice refuses a file of measurements that is named again, or whose copy is:
// its points would count twice, and errors and intervals seem surer than they are.
// Files of different sizes are not read for it.
func notTwice(paths []string) error {
	sizes := map[int64]int{}
	size := func(path string) int64 {
		if info, err := os.Stat(path); err == nil {
			return info.Size()
		}
		return -1
	}
	for _, path := range paths {
		sizes[size(path)]++
	}
	first := map[string]string{}
	for _, path := range paths {
		if sizes[size(path)] < 2 {
			continue
		}
		sum, err := doc.HashFile(path)
		if err != nil {
			continue // whoever reads it knows more
		}
		if have, ok := first[sum]; ok {
			return usagef("%s: holds the same bytes as %s, and its points would count twice: name one of them", path, have)
		}
		first[sum] = path
	}
	return nil
}

func addRecording(d *fit.Data, path string) error {
	if err := notAnother(path); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return openError(err)
	}
	defer f.Close()
	return d.Add(path, f)
}

// notAnother names another evenkeel document that was passed as a recording: it
// has line breaks inside, so a reader of lines would only call it torn.
func notAnother(path string) error {
	if err := regular(path); err != nil {
		return err
	}
	schema, err := sniff(path)
	switch {
	case errors.Is(err, doc.ErrNotObject):
		return fmt.Errorf("%s: is no recording of evenkeel; a log or a table of another tool is made one first (see: evenkeel import --help)", path)
	case err != nil, schema == profile.RecordingSchema:
		return nil // the reader knows more
	}
	want := kindOf(profile.RecordingSchema)
	if kind := kindOf(schema); kind != want {
		return fmt.Errorf("%s: is an %s, expected %s; name the recording instead", path, kind, want)
	}
	return nil
}

// regular refuses what can be read once only: files are hashed, or looked into, and then
// read, and of a pipe such as <(zcat x.rec.jsonl.gz) the first of these takes the beginning.
func regular(path string) error {
	switch info, err := os.Stat(path); {
	case err != nil:
		return nil // who opens it says why not
	case info.IsDir():
		return fmt.Errorf("%s: is a folder; name a file in it", path)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s: is no regular file, and files are read twice; name a file", path)
	}
	return nil
}

// namedLikeFile says of what might be a file's name or a word of ours, and is neither, that
// a file was meant: a file that is missing is no slip in the command line, and ends with the
// code of one that cannot be read.
func namedLikeFile(s string) bool {
	return !strings.ContainsAny(s, " +") && (strings.Contains(s, "/") || filepath.Ext(s) != "")
}

// openError says what a path is that cannot be opened or read.
func openError(err error) error {
	var path *fs.PathError
	switch {
	case !errors.As(err, &path):
		return err
	case errors.Is(err, fs.ErrNotExist) && path.Path == "-":
		return errors.New("-: no such file, and stdin is not read: name a file")
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: no such file", path.Path)
	case errors.Is(err, syscall.EISDIR):
		return fmt.Errorf("%s: is a folder; name a file in it", path.Path)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: cannot be read: %w; ask its owner for the right to, or name a copy", path.Path, path.Err)
	}
	return err
}

// inputs hashes the files a document was made from and names them relative to
// the document, so that both can be moved together.
func inputs(document string, paths []string) ([]doc.Input, error) {
	var in []doc.Input
	for _, p := range paths {
		sum, err := doc.HashFile(p)
		if err != nil {
			return nil, err
		}
		in = append(in, doc.Input{Path: relative(document, p), SHA256: sum})
	}
	return in, nil
}

func relative(document, path string) string {
	from, err1 := filepath.Abs(filepath.Dir(document))
	to, err2 := filepath.Abs(path)
	if err1 != nil || err2 != nil {
		return filepath.ToSlash(path)
	}
	rel, err := filepath.Rel(from, to)
	if err != nil {
		return filepath.ToSlash(path)
	}
	return filepath.ToSlash(rel)
}

// resolve finds an input of a document and checks that it is still the same file.
func resolve(document string, in doc.Input) (string, error) {
	path := filepath.Join(filepath.Dir(document), filepath.FromSlash(in.Path))
	sum, err := doc.HashFile(path)
	if err != nil {
		return "", fmt.Errorf("%w (it is an input of %s, which names it by its place beside itself: keep the two together, or fit again)", err, document)
	}
	if sum != in.SHA256 {
		return "", fmt.Errorf("%s: changed since %s was made from it (sha256 %.12s, was %.12s): make that again", path, document, sum, in.SHA256)
	}
	return path, nil
}

// heldOut returns the points of recordings that a profile has not seen: of its
// own recordings, and of others that hold the same points, those it set aside;
// of the rest all. Where its own recordings still lie where it names them, their points
// are told in whatever file they come.
//
// The split is a property of all of a profile's recordings together, so either
// all of them are named or none.
func heldOut(document string, p *costmodel.Profile, paths []string) (*fit.Data, []fit.Point, error) {
	var own, other []string
	seen := map[string]bool{}
	for _, path := range paths {
		if err := regular(path); err != nil {
			return nil, nil, err
		}
		sum, err := doc.HashFile(path)
		if err != nil {
			return nil, nil, err
		}
		if slices.ContainsFunc(p.Inputs, func(in doc.Input) bool { return in.SHA256 == sum }) {
			own = append(own, path)
			seen[sum] = true
		} else {
			other = append(other, path)
		}
	}
	if len(own) > 0 {
		for _, in := range p.Inputs {
			if !seen[in.SHA256] {
				return nil, nil, fmt.Errorf("the profile was fitted to several recordings, and which of their points it set aside shows only with all of them: name %s too", in.Path)
			}
		}
	}
	ownData, err := loadData(own)
	if err != nil {
		return nil, nil, err
	}
	points := ownData.Held(p.Holdout.Seed, p.Holdout.Share)
	all, err := loadData(paths)
	if err != nil {
		return nil, nil, err
	}
	otherData, err := loadData(other)
	if err != nil {
		return nil, nil, err
	}
	var fitted *fit.Data
	if len(other) > 0 {
		fitted = fittedTo(document, p)
	}
	unseen, known := otherData.Unseen(p, fitted)
	all.Own = known
	return all, append(points, unseen...), nil
}

// fittedTo is what a profile was fitted to, or nil where not all of its recordings are as
// they were, where it names them.
func fittedTo(document string, p *costmodel.Profile) *fit.Data {
	paths, err := ownRecordings(document, p)
	if err != nil || len(paths) == 0 {
		return nil
	}
	d, err := loadData(paths)
	if err != nil {
		return nil
	}
	return d
}

// ownRecordings are the files that a profile was fitted to, where it names them.
func ownRecordings(document string, p *costmodel.Profile) (paths []string, err error) {
	for _, in := range p.Inputs {
		path, err := resolve(document, in)
		if err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// probe says, before work is done for it, whether the file that a flag names can be
// written and holds nothing else than what will be; no path is none.
func (o output) probe() error {
	if o.path == "" {
		return nil
	}
	if info, err := os.Stat(o.path); err == nil && !info.Mode().IsRegular() {
		return o.notFolder() // a device such as /dev/null is written to as it is, whoever may make files beside it
	}
	dir := filepath.Dir(doc.Target(o.path))
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return fmt.Errorf("%s %s: there is no folder %s to write it to: make it, or name another", o.flag, o.path, dir)
	}
	if err := doc.Probe(dir); err != nil {
		return fmt.Errorf("%s %s: %w", o.flag, o.path, err)
	}
	return o.replaces()
}

// probeAppend is probe for a file that is added to if it is there, wherever it lies.
func (o output) probeAppend() error {
	info, err := os.Stat(o.path)
	if err != nil || !info.Mode().IsRegular() {
		return o.probe()
	}
	if err := o.notDocument(); err != nil {
		return err
	}
	f, err := os.OpenFile(o.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("%s %s: cannot be added to: %w; name another file", o.flag, o.path, errors.Unwrap(err))
	}
	return f.Close()
}

// notEmpty refuses flags that are given without a value, as scripts do whose variable
// is not set: left out they would mean something else than was asked for.
func notEmpty(c *cobra.Command, flags ...string) error {
	for _, name := range flags {
		f := c.Flags().Lookup(name)
		empty := f.Value.String() == ""
		if list, ok := f.Value.(interface{ GetSlice() []string }); ok {
			empty = strings.Join(list.GetSlice(), "") == ""
		}
		if f.Changed && empty {
			return usagef("--%s: is empty: give it a value, or leave the flag out", name)
		}
	}
	return nil
}

// notFolder refuses to write a file where there is a folder.
func (o output) notFolder() error {
	if info, err := os.Stat(o.path); err == nil && info.IsDir() {
		return fmt.Errorf("%s %s: is a folder; name a file to write", o.flag, o.path)
	}
	return nil
}

// output is a file that a flag names to be written; an empty path is none. Where what is
// written is not named, the file may hold anything.
type output struct {
	flag, path string
	what       content
}

// notLost refuses outputs that would destroy something: a file that is read, or what
// another flag writes. Paths of inputs that are empty or are no files are passed over.
func notLost(outs []output, read ...string) error {
	for i, o := range outs {
		if err := o.named(); err != nil {
			return err
		}
		if err := notInput(o.flag, o.path, read...); err != nil {
			return err
		}
		for _, other := range outs[:i] {
			if other.path != "" && o.path != "" && sameTarget(other.path, o.path) {
				return usagef("%s %s: is the file that %s writes to, and one would be lost; choose another name", o.flag, o.path, other.flag)
			}
		}
	}
	return nil
}

// named refuses -, by which other tools mean stdout: that holds the tables, or with
// --json what they show, so a file called - is hardly meant.
func (o output) named() error {
	if o.path == "-" {
		return usagef("%s -: stdout has the tables, or the same with --json: name a file, ./- for one that is called so", o.flag)
	}
	return nil
}

// sameTarget says whether what is written to two paths ends up in one file, which need
// not be there yet. Devices such as /dev/null take as much as is written to them.
func sameTarget(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	switch {
	case errA == nil && errB == nil:
		return infoA.Mode().IsRegular() && os.SameFile(infoA, infoB)
	case errA == nil || errB == nil:
		return false
	}
	return target(a) == target(b)
}

// target is where a file that is not there would be made.
func target(path string) string {
	path = doc.Target(path)
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return filepath.Clean(path)
}

// notInput refuses to write, as a flag says, to one of the files that are read,
// which would be lost. Empty names are none.
func notInput(flag, out string, read ...string) error {
	target, err := os.Stat(out)
	if err != nil {
		return nil // there is nothing to lose
	}
	for _, path := range read {
		if info, err := os.Stat(path); err == nil && os.SameFile(info, target) {
			return usagef("%s %s: is one of the files that are read, and would be overwritten; choose another name", flag, out)
		}
	}
	return nil
}
