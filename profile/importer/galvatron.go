package importer

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/go-json-experiment/json/jsontext"
)

// galvatronFormat reads Galvatron's profiles of hardware.
func galvatronFormat() Format {
	return Format{
		Name: "galvatron",
		Doc:  "Galvatron's sp_time_*.json: all-reduce and all-to-all times by size; they name no GPU (--device). Its bandwidths have no size and are refused",
		Read: func(s *Sink, sources []Source) error {
			largest := map[string]int{}
			scan := func(src Source, f File) error {
				g := newGalvatron(s, src)
				g.scan = true
				err := g.read(src, f)
				largest[src.Name] = g.largest
				return err
			}
			if s.Nodes > 1 {
				if err := eachSource(sources, scan); err != nil {
					return err
				}
			}
			return eachSource(sources, func(src Source, f File) error {
				g := newGalvatron(s, src)
				g.largest = largest[src.Name]
				return g.read(src, f)
			})
		},
	}
}

// galvatron reads one file: an object, perhaps of objects, whose keys tell what
// their numbers mean.
type galvatron struct {
	placer
	source  string
	sized   *regexp.Regexp // key of a time with its size
	largest int            // group of the file, which is all ranks; 0 where nobody asks
	scan    bool           // for the largest group alone
}

func newGalvatron(s *Sink, src Source) *galvatron {
	return &galvatron{
		placer: newPlacer(s), source: src.Name,
		sized: regexp.MustCompile(`^(allreduce|all2all|alltoall)_size_(\d{1,6})_(\d{1,9})MB_time$`),
	}
}

// galvatronStack is the software of a profile whose files name none: calls of
// torch.distributed, their launch included.
const galvatronStack = "galvatron"

// galvatronDepth is deeper than any profile; a file of nothing but brackets is
// not read to its end.
const galvatronDepth = 16

// galvatronMost is far more than any profile holds. It bounds what is kept of
// keys and of text between quotes.
const galvatronMost = 64 << 20

// read walks the tokens of one object.
func (g *galvatron) read(src Source, r io.Reader) error {
	if src.Size > galvatronMost {
		return fmt.Errorf("%s: %s; a profile of Galvatron has at most %s", src.Name, units.Bytes(src.Size), units.Bytes(galvatronMost))
	}
	d := jsontext.NewDecoder(&mender{in: io.LimitReader(r, galvatronMost)}) // Python writes NaN where a mean is of nothing
	if kind := d.PeekKind(); kind != '{' {
		_, err := d.ReadToken()
		if wrong := new(jsontext.SyntacticError); err == nil || errors.As(err, &wrong) && !errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("it begins with something else than {; a table (CSV) is imported with --from table")
		}
		return g.notJSON(err)
	}
	key := ""
	for {
		t, err := d.ReadToken()
		switch {
		case err != nil:
			return g.notJSON(err)
		case d.StackDepth() == 0:
			return g.ended(d)
		case d.StackDepth() > galvatronDepth:
			return fmt.Errorf("%s: nested deeper than %d levels; this is no profile of Galvatron", g.source, galvatronDepth)
		}
		in, n := d.StackIndex(d.StackDepth())
		if in == '{' && n%2 == 1 {
			key = t.String()
			continue
		}
		g.token(key, in, t)
		if g.fatal != nil {
			return fmt.Errorf("%s: %w", g.place(key), g.fatal)
		}
	}
}

// ended makes sure that nothing follows the object.
func (g *galvatron) ended(d *jsontext.Decoder) error {
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return g.notJSON(cmp.Or(err, errors.New("text after the end of the object")))
	}
	return nil
}

// token takes a value. Brackets and braces open and close others.
func (g *galvatron) token(key string, in jsontext.Kind, t jsontext.Token) {
	if g.scan {
		if m := g.sized.FindStringSubmatch(key); m != nil {
			n, _ := strconv.Atoi(m[2]) // six digits at most
			g.largest = max(g.largest, n)
		}
		return
	}
	switch t.Kind() {
	case '{', '}', '[', ']':
	case '0':
		v, err := t.Float()
		if in != '{' || err != nil {
			g.Drop(g.place(key), "a number that stands under no key of its own, or is too large")
			return
		}
		g.value(key, v)
	default:
		g.Drop(g.place(key), "text, true, false, null or NaN where a number belongs")
	}
}

func (g *galvatron) notJSON(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%s: ends in the middle of its JSON object; fetch the file again", g.source)
	}
	return fmt.Errorf("%s: not a JSON object of profiled numbers: %w", g.source, err)
}

func (g *galvatron) place(key string) string { return g.source + ": " + quoted(key) }

// value takes one number. Everything that it means is in its key.
func (g *galvatron) value(key string, v float64) {
	if m := g.sized.FindStringSubmatch(key); m != nil {
		g.timed(key, m[1], m[2], m[3], v)
		return
	}
	reason := "a key that no op's time stands under"
	switch {
	case strings.Contains(key, "_consec_"), strings.HasPrefix(key, "pp_size_"):
		reason = "a bandwidth without the size of its message, in MiB/ms or GB/s as the writer's version had it: no time can be told from it"
	case key == "overlap_coe":
		reason = "a slow-down of overlapping without the shapes that overlapped"
	case strings.HasPrefix(key, "layernum["), strings.HasPrefix(key, "layertype_"):
		reason = "the time of a whole model, embeddings included: no op's time can be told from it"
	case strings.Contains(key, "memory"), strings.HasPrefix(key, "tp_"), strings.HasPrefix(key, "1_"):
		reason = "memory of a model's layers, not a time"
	}
	g.Drop(g.place(key), reason)
}

// perNode is the GPUs of a node where --nodes says how many there are: the largest
// group is of all, and the ranks of a smaller one follow each other, so that it may
// be inside a node. 0 where that is not told.
func (g *galvatron) perNode() int {
	if g.Nodes < 2 || g.largest%g.Nodes != 0 {
		return 0
	}
	return g.largest / g.Nodes
}

// timed takes the milliseconds of a collective over n ranks; the MB of the key
// are 2^20 bytes.
func (g *galvatron) timed(key, collective, ranks, size string, ms float64) {
	kind, _, _ := collectiveOf(collective)
	n, err1 := strconv.Atoi(ranks)
	mib, err2 := strconv.Atoi(size)
	if err := errors.Join(err1, err2); err != nil {
		g.Drop(g.place(key), "a number of ranks or a size that cannot be read")
		return
	}
	g.Note("Galvatron's times are of torch.distributed calls between events, launch included, a mean over calls and ranks; or nccl-tests' out-of-place ones: a file does not tell which")
	c := timedCollective{
		kind: kind, message: op.Message{Group: n, Bytes: units.Bytes(mib) << 20, DType: g.DType},
		stack: stackOf(g.Options.Stack), seconds: ms / 1e3, perNode: g.perNode(),
	}
	if c.stack == "" {
		c.stack = galvatronStack
	}
	if fault := g.onGroup(g.place(key), c); fault != "" {
		g.Drop(g.place(key)+": "+ranks+" GPUs", fault)
	}
}
