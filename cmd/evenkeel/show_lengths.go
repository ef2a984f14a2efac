package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/workload"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/results"
	"github.com/spf13/cobra"
)

// lengthView is the flags of show that are of sequence lengths.
type lengthView struct {
	column string
	batch  int
	drawn  int
	seed   uint64
	given  []string // those of these flags that are on the command line
}

// lengthFlagsOf names the flags of lengths on the command line.
func lengthFlagsOf(c *cobra.Command) (given []string) {
	for _, name := range []string{"column", "batch", "draw", "seed"} {
		if c.Flags().Changed(name) {
			given = append(given, name)
		}
	}
	return given
}

// idle refuses flags that change nothing for lengths of some kind.
func (v *lengthView) idle(name, kind string, flags ...string) error {
	for _, f := range flags {
		if slices.Contains(v.given, f) {
			return usagef("show: --%s: %s %s: leave it out", f, name, kind)
		}
	}
	return nil
}

func (v *lengthView) flags(c *cobra.Command) {
	c.Flags().StringVar(&v.column, "column", "", "of lengths in CSV, JSONL or parquet: the column that holds them")
	c.Flags().IntVar(&v.batch, "batch", 512, "of lengths: how many sequences a global batch has")
	c.Flags().IntVar(&v.drawn, "draw", 100_000, "of a histogram or a named distribution: how many lengths to draw")
	c.Flags().Uint64Var(&v.seed, "seed", 0, "of a histogram: the seed of its draws")
}

// validate refuses what no set of lengths can be shown with.
func (v *lengthView) validate() error {
	switch {
	case v.batch < 1:
		return usagef("show: --batch %d: a batch has at least one sequence", v.batch)
	case v.drawn < 1 || v.drawn > workload.MaxLengths:
		return usagef("show: --draw %d: want 1 to %d", v.drawn, workload.MaxLengths)
	}
	return nil
}

// isLengths reports whether a name is one of sequence lengths: a file that is
// called as such files are and holds no evenkeel document, or the specification
// of a distribution that is no file's name.
func (v *lengthView) isLengths(path string) bool {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return isDistribution(path)
	}
	for _, ours := range []string{".rec.jsonl", ".trace.jsonl", ".plan.json", ".profile.json"} {
		if strings.HasSuffix(path, ours) {
			return false
		}
	}
	format, named := workload.FormatOf(path)
	if v.column != "" || named && (format == workload.CSV || format == workload.Parquet) {
		return true
	}
	if format == workload.JSON {
		return isHistogram(path)
	}
	if schema, err := sniff(path); err == nil && schema != "" {
		return false
	}
	return named
}

// isDistribution: it is written as one is, with a colon, or has the name of one.
func isDistribution(spec string) bool {
	name, _, colon := strings.Cut(spec, ":")
	if colon {
		return true
	}
	for _, d := range workload.Distributions() {
		if d[0] == name {
			return true
		}
	}
	return false
}

// isHistogram: a JSON file whose first key begins as a range does, or an array.
// Documents, also broken ones, begin with "schema" and are told as such.
func isHistogram(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, 256)
	n, _ := io.ReadFull(f, head) // a shorter file is no error here
	head = bytes.TrimSpace(head[:n])
	if bytes.HasPrefix(head, []byte("[")) {
		return true
	}
	key, object := bytes.CutPrefix(head, []byte("{"))
	key, quoted := bytes.CutPrefix(bytes.TrimSpace(key), []byte(`"`))
	return object && quoted && len(key) > 0 && bytes.ContainsAny(key[:1], "[(0123456789")
}

func (a *app) showLengths(name string, v lengthView) error {
	if err := v.validate(); err != nil {
		return err
	}
	lengths, source, err := loadLengths(name, v)
	if err != nil {
		return err
	}
	s, err := results.SummariseLengths(name, source, lengths, v.batch)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return a.print(s, func(w io.Writer) error { return results.Lengths(w, s) })
}

// loadLengths reads lengths from a file, or draws them from the histogram that
// it holds or from a named distribution; source says which.
func loadLengths(name string, v lengthView) (lengths []units.Tokens, source string, err error) {
	if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) && isDistribution(name) {
		d, err := workload.ParseDistribution(name)
		if err != nil {
			return nil, "", usagef("%s: no such file; nor a distribution: %w", name, err)
		}
		if err := v.idle(name, "is a distribution, which has no columns and a seed of its own, as in "+d.String(), "column", "seed"); err != nil {
			return nil, "", err
		}
		return d.Lengths(v.drawn), "drawn from " + d.String(), nil
	}
	sample, err := loadSample(name, v.column)
	if err != nil {
		return nil, "", err
	}
	if h := sample.Histogram; h != nil {
		return h.Draw(v.drawn, v.seed), fmt.Sprintf("drawn from a histogram of %s, seed %d; inside a bin the share of longer ones falls as a power of the length", units.Count(len(h.Bins), "bin"), v.seed), nil
	}
	if err := v.idle(name, "lists lengths one by one, and none is drawn", "draw", "seed"); err != nil {
		return nil, "", err
	}
	return sample.Lengths, "one by one, in the file's order", nil
}

// mostPiped is the most that is read from what is no file.
const mostPiped = 1 << 30

// loadSample reads a file of lengths; one that cannot be read at any place, such
// as a pipe, is held in memory.
func loadSample(name, column string) (*workload.Sample, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, openError(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, fmt.Errorf("%s: is a folder; name a file of lengths", name)
	}
	if info.Mode().IsRegular() {
		return workload.Read(name, f, info.Size(), workload.Options{Column: column})
	}
	data, err := io.ReadAll(io.LimitReader(f, mostPiped+1))
	if err != nil {
		return nil, err
	}
	if len(data) > mostPiped {
		return nil, fmt.Errorf("%s: more than %s through a pipe: write it to a file first", name, units.Bytes(mostPiped))
	}
	return workload.Read(name, bytes.NewReader(data), int64(len(data)), workload.Options{Column: column})
}
