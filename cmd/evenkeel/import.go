package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/importer"
	"github.com/spf13/cobra"
)

// importing is what the flags of import say.
type importing struct {
	from    string
	out     string
	devices string
	dtype   string
	network string // of a cluster
	options importer.Options
}

func (a *app) imports() *cobra.Command {
	var o importing
	c := &cobra.Command{
		Use:   "import --from format files... -o x.rec.jsonl",
		Short: "Turn what other tools measured into a recording that fit and check read",
		Long: `Reads files of one format and writes a recording: one point for every row that
can be used. Every other row is counted, with the reason and the place of the
first. What a file does not say is asked for by a flag; the little that is taken
without one, such as that a group larger than a node fills nodes of its GPU's
model, is in the notes that are printed. Rows that contradict each other or the
GPU's datasheet are flagged and left out.

The formats are:

` + formatsHelp() + `
A topology is one machine's; of it, instead of a recording, a cluster.yaml is
drafted, whose comments tell what was read, guessed and left to fill in:

` + topologiesHelp() + `
SOURCE_DATE_EPOCH, where it is set, is the time of creation in seconds since
1970, so that the same files give the same bytes.`,
		Example: `  evenkeel import --from table h100.csv nccl.csv -o h100.rec.jsonl
  evenkeel import --from table gpus.csv --devices devices.csv -o new.rec.jsonl    # a GPU that is not known
  evenkeel import --from nccl-tests allreduce.log --device h100_sxm -o links.rec.jsonl
  evenkeel import --from nvidia-smi-topo topo.txt --device h100_sxm --nodes 4 --network roce -o cluster.yaml`,
		Args: args(cobra.MinimumNArgs(1), "files"),
		RunE: func(c *cobra.Command, paths []string) error {
			if err := notEmpty(c, "device", "devices", "link", "network", "collective", "stack", "dtype"); err != nil {
				return err
			}
			for _, x := range []struct {
				flag string
				n    int
			}{{"ranks", o.options.Ranks}, {"nodes", o.options.Nodes}} {
				if c.Flags().Changed(x.flag) && x.n < 1 {
					return usagef("--%s %d: want at least 1, or leave the flag out where the files tell", x.flag, x.n)
				}
			}
			if isTopology(o.from) {
				return a.runTopology(o, paths, c.Flags().Changed)
			}
			return a.runImport(c.Context(), o, paths)
		},
	}
	f := c.Flags()
	f.StringVar(&o.from, "from", "", "format of the files")
	f.StringVarP(&o.out, "output", "o", "", "recording, or cluster.yaml, to write")
	f.StringVar(&o.options.Device, "device", "", "GPU model, where the files name none or one that is not known")
	f.IntVar(&o.options.Ranks, "ranks", 0, "ranks of a collective, where the files do not tell")
	f.IntVar(&o.options.Nodes, "nodes", 0, "nodes that the ranks sit on, where the files do not tell; of a topology: how many such machines (default 1)")
	f.StringVar(&o.options.Link, "link", "", "class of the links between ranks, such as nvlink or pcie (default: the GPU model's own)")
	f.StringVar(&o.network, "network", "", "class of the links between nodes, for a topology; left out, net where the file tells the rate of its cards")
	f.StringVar(&o.options.Collective, "collective", "", "collective, where a log does not name it")
	f.StringVar(&o.options.Stack, "stack", "", "software, such as nccl-2.27.3, where the files do not name it")
	f.StringVar(&o.dtype, "dtype", "", "precision, where the files do not name it")
	f.StringVar(&o.devices, "devices", "", "table of GPU models (CSV) beyond, or instead of, the known ones")
	return c
}

// formatsHelp lists the formats with what each reads, broken between words.
func formatsHelp() string {
	const indent, width = 18, 84
	var b strings.Builder
	for _, f := range importer.Formats() {
		line := fmt.Sprintf("  %-*s", indent-2, f.Name)
		for word := range strings.FieldsSeq(f.Doc) {
			if len(line)+len(word) > width {
				b.WriteString(strings.TrimRight(line, " ") + "\n")
				line = strings.Repeat(" ", indent)
			}
			line += word + " "
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// settle checks the flags and fills in what they stand for.
func (o *importing) settle() (importer.Format, error) {
	if o.from == "" {
		return importer.Format{}, usagef("import: --from is missing: name the format of the files (see: evenkeel import --help)")
	}
	format, err := importer.Lookup(o.from)
	if err != nil {
		return importer.Format{}, usagef("--from: %w; topologies: %s", err, strings.Join(topologies(), ", "))
	}
	if err := (output{flag: "-o", path: o.out}).named(); err != nil {
		return importer.Format{}, err
	}
	o.options.DType = op.DType(o.dtype)
	switch {
	case o.out == "":
		return importer.Format{}, usagef("import: -o is missing: name the recording to write")
	case o.network != "":
		return importer.Format{}, usagef("--network: is for topologies (--from %s); the links of a recording are named with --link", strings.Join(topologies(), " or "))
	case o.options.Collective != "" && !importer.IsCollective(o.options.Collective):
		return importer.Format{}, usagef("--collective %q: want all_reduce, all_gather, reduce_scatter, alltoall or sendrecv", o.options.Collective)
	case o.dtype != "" && o.options.DType.Size() == 0:
		return importer.Format{}, usagef("--dtype %q: want f32, bf16, f16 or fp8", o.dtype)
	}
	if o.options.Link != "" {
		if err := costmodel.CheckLinkClass(o.options.Link); err != nil { // no cluster could name it
			return importer.Format{}, usagef("--link %w", err)
		}
	}
	o.options.Sheets, err = readDevices(o.devices)
	return format, err
}

// readDevices reads --devices, a table of GPU models; none without the flag.
func readDevices(path string) (map[string]importer.Model, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, openError(err)
	}
	defer f.Close()
	return importer.ReadDevices(path, f)
}

func (a *app) runImport(ctx context.Context, o importing, paths []string) error {
	format, err := o.settle()
	if err != nil {
		return err
	}
	if err := (output{flag: "-o", path: o.out}).probe(); err != nil {
		return err
	}
	shown := newReading(a.errOut, a.quiet)
	sources, err := openable(ctx, paths, o.out, shown)
	if err != nil {
		return err
	}
	if err := (output{"-o", o.out, imported}).replaces(); err != nil {
		return err
	}
	created, err := creation()
	if err != nil {
		return err
	}
	header := profile.Header{Schema: profile.RecordingSchema, Tool: tool, Created: created}
	var report *importer.Report
	err = doc.WriteLines(o.out, func(write func(any) error) error {
		var err error
		report, err = importer.Import(format, sources, o.options, header, write)
		return err
	})
	shown.close()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return errors.New("interrupted while the files were read; nothing was written, and the same command begins again")
	}
	if report != nil {
		show := func(w io.Writer) error { return writeImport(w, report, o.out, err == nil) }
		if printed := a.print(report, show); err == nil {
			err = printed
		}
	}
	if errors.Is(err, importer.ErrNothing) {
		return fmt.Errorf("%w; nothing was written", err)
	}
	return err
}

// creation is the time that the recording bears: now, or what SOURCE_DATE_EPOCH
// says (reproducible-builds.org), so that a script's output can be compared.
func creation() (string, error) {
	now := time.Now()
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		s, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil || s < 0 || s > 1<<40 {
			return "", usagef("SOURCE_DATE_EPOCH=%q: want seconds since 1970", epoch)
		}
		now = time.Unix(s, 0)
	}
	return now.UTC().Format(time.RFC3339), nil
}

// recordings is what the schemas of recordings of all versions begin with.
var recordings = profile.RecordingSchema[:strings.LastIndex(profile.RecordingSchema, "/")+1]

// openable checks that the files are there, can be read twice, are named once,
// and are not what is to be written.
func openable(ctx context.Context, paths []string, out string, shown *reading) ([]importer.Source, error) {
	target, _ := os.Stat(out)
	var sources []importer.Source
	for _, path := range paths {
		if err := regular(path); err != nil {
			return nil, err
		}
		if schema, err := sniff(path); err == nil && strings.HasPrefix(schema, recordings) {
			return nil, fmt.Errorf("%s: is a recording already: evenkeel fit %s -o x.profile.json reads it as it is", path, path)
		}
		info, err := os.Stat(path)
		switch {
		case err != nil:
			return nil, openError(err)
		case target != nil && os.SameFile(info, target):
			return nil, usagef("-o %s: is one of the files to import; choose another name", out)
		case info.Size() == 0:
			return nil, fmt.Errorf("%s: is empty: did the tool that should have filled it fail, or write elsewhere?", path)
		}
		shown.expect(info.Size())
		sources = append(sources, importer.Source{Name: path, Size: info.Size(), Open: func() (importer.File, error) {
			f, err := os.Open(path)
			if err != nil {
				return nil, openError(err)
			}
			return &readFile{File: f, ctx: ctx, shown: shown}, nil
		}})
	}
	return sources, notTwice(paths)
}
