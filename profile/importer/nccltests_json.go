package importer

import (
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// ncclJSON reads the files that nccl-tests writes with -J (src/util.cu of
// 2025-10 and later): one object a run, the keys in the writer's order. Unknown
// keys are passed over unread; of env, which holds the whole environment, what is known to
// choose for the library is kept.
type ncclJSON struct {
	name  string
	dec   *jsontext.Decoder
	done  bool
	table *ncclTable
	visit func(*ncclRow)
}

func newNCCLJSON(name string, in io.Reader) *ncclJSON {
	return &ncclJSON{name: name, dec: jsontext.NewDecoder(in, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))}
}

// errShape says that a value is not of the kind that the writer writes there.
var errShape = errors.New("a value of another kind than nccl-tests writes")

// next implements ncclReader. A file that ends or breaks in the middle gives
// what it holds until there.
func (r *ncclJSON) next(visit func(*ncclRow)) (*ncclTable, error) {
	if r.done || r.dec.PeekKind() == 0 {
		if !r.done {
			_, err := r.dec.ReadToken()
			r.done = true
			if !errors.Is(err, io.EOF) {
				return nil, fmt.Errorf("%s: %w", r.name, err)
			}
		}
		return nil, io.EOF
	}
	r.table, r.visit = &ncclTable{}, visit
	err := r.object(r.topKey)
	if err != nil {
		r.done, r.table.truncated = true, true
	}
	if !r.table.recognised() {
		if err == nil {
			err = errors.New("no key of an nccl-tests file (version, args, config, results); " + ncclPrinted)
		}
		return nil, fmt.Errorf("%s: not a -J file of nccl-tests: %w", r.name, err)
	}
	return r.table, nil
}

// recognised says whether an object had anything of a -J file.
func (t *ncclTable) recognised() bool {
	return t.schema > 0 && (t.program != "" || t.rows > 0 || t.ranks.lines > 0)
}

// object goes through the keys of an object.
func (r *ncclJSON) object(key func(string) error) error {
	if t, err := r.dec.ReadToken(); err != nil {
		return err
	} else if t.Kind() != '{' {
		return errShape
	}
	for r.dec.PeekKind() == '"' {
		t, err := r.dec.ReadToken()
		if err != nil {
			return err
		}
		if err := key(t.String()); err != nil {
			return err
		}
	}
	_, err := r.dec.ReadToken()
	return err
}

// list goes through the elements of an array; null is an empty one.
func (r *ncclJSON) list(element func(i int) error) error {
	t, err := r.dec.ReadToken()
	if err != nil || t.Kind() == 'n' {
		return err
	}
	if t.Kind() != '[' {
		return errShape
	}
	for i := 0; r.dec.PeekKind() != ']'; i++ {
		if r.dec.PeekKind() == 0 {
			break // the error is that of the next token
		}
		if err := element(i); err != nil {
			return err
		}
	}
	_, err = r.dec.ReadToken()
	return err
}

// scalar reads a string, a number or a literal as text; "" for null.
func (r *ncclJSON) scalar() (string, error) {
	if k := r.dec.PeekKind(); k == '{' || k == '[' {
		return "", r.dec.SkipValue()
	}
	t, err := r.dec.ReadToken()
	if err != nil || t.Kind() == 'n' {
		return "", err
	}
	return strings.TrimSpace(t.String()), nil
}

func (r *ncclJSON) integer() (int, error) {
	text, err := r.scalar()
	n, bad := strconv.Atoi(text)
	if bad != nil {
		n = 0
	}
	return n, err
}

func (r *ncclJSON) topKey(key string) (err error) {
	t := r.table
	switch key {
	case "version":
		t.schema, err = r.integer()
	case "args":
		return r.list(r.arg)
	case "env":
		if r.dec.PeekKind() != '[' {
			return r.dec.SkipValue()
		}
		return r.list(func(int) error {
			text, err := r.scalar()
			if strings.HasPrefix(text, "NCCL_") {
				t.forced = forcing(t.forced, text)
			}
			return err
		})
	case "nccl_version":
		var code int
		code, err = r.integer()
		t.version = libraryVersion(code)
	case "config":
		return r.object(r.configKey)
	case "results":
		return r.list(r.result)
	case "out_of_bounds":
		return r.object(func(key string) error {
			text, err := r.scalar()
			if n, bad := strconv.ParseFloat(text, 64); key == "count" && bad == nil {
				t.outOfBounds = int64(n)
			}
			return err
		})
	case "average_bus_bandwidth", "average_bus_bandwidith": // so spelt until 2026-02
		return r.object(r.averageKey)
	case "errors":
		return r.list(func(int) error {
			text, err := r.scalar()
			if text != "" {
				t.errorTexts++
			}
			return err
		})
	default:
		return r.dec.SkipValue()
	}
	return err
}

// arg takes the collective from the program's name; the rest of the command
// line is not kept.
func (r *ncclJSON) arg(i int) error {
	text, err := r.scalar()
	if i == 0 && err == nil {
		base := path.Base(strings.ReplaceAll(text, `\`, "/"))
		r.table.program = programOf(strings.TrimSuffix(base, ".exe"))
	}
	return err
}

func (r *ncclJSON) averageKey(key string) error {
	text, err := r.scalar()
	if v, ok := printed(text); ok && (key == "bandwidth" || key == "bandwidith") && !math.IsNaN(v.value) {
		r.table.average, r.table.averaged = v.value, true
	}
	return err
}

func (r *ncclJSON) configKey(key string) (err error) {
	t, n := r.table, 0
	switch key {
	case "nthreads":
		t.threads, err = r.integer()
	case "ngpus":
		t.gpus, err = r.integer()
	case "maximum_bytes":
		n, err = r.integer()
		t.maxBytes = int64(n)
	case "aggregated_iterations":
		n, err = r.integer()
		t.aggregated = n > 1
	case "graph":
		n, err = r.integer()
		t.graphed = n > 0
	case "unalign":
		n, err = r.integer()
		t.unaligned = n > 0
	case "blocking_collectives":
		var text string
		text, err = r.scalar()
		t.blocking = text == "true"
	case "devices":
		err = r.list(func(int) error { return r.device() })
		r.spread()
	default:
		return r.dec.SkipValue()
	}
	return err
}

// device reads one entry of the devices, the first rank of a process.
func (r *ncclJSON) device() error {
	var seat ncclSeat
	err := r.object(func(key string) (err error) {
		switch key {
		case "rank":
			seat.rank, err = r.integer()
		case "group":
			seat.group, err = r.integer()
		case "pid":
			seat.pid, err = r.scalar()
		case "hostname":
			seat.host, err = r.scalar()
		case "device":
			seat.device, err = r.scalar()
		case "device_hex":
			seat.bus, err = r.scalar()
		case "device_info":
			seat.model, err = r.scalar()
		default:
			err = r.dec.SkipValue()
		}
		return err
	})
	if err == nil && seat.rank >= 0 && seat.group >= 0 {
		r.table.ranks.add(seat)
	}
	return err
}

// spread makes every entry stand for the ranks of its process, unless there is
// one entry a rank already.
func (r *ncclJSON) spread() {
	t := r.table
	t.ranks.per = max(1, t.threads) * max(1, t.gpus)
	if t.ranks.lines > 1 && t.ranks.highest == t.ranks.lines-1 {
		t.ranks.per = 1
	}
}

func (r *ncclJSON) result(i int) error {
	row := &ncclRow{where: fmt.Sprintf("%s: results[%d]", r.name, i)}
	err := r.object(func(key string) error { return r.resultKey(row, key) })
	if err != nil && row.bad == "" {
		row.bad = tornRow
	}
	if row.bad == "" && (len(row.halves()) == 0 || row.dtype == "") {
		row.bad = tornRow
	}
	r.table.count(row)
	r.visit(row)
	return err
}

func (r *ncclJSON) resultKey(row *ncclRow, key string) (err error) {
	switch key {
	case "size":
		row.size, err = r.bytes(row)
	case "count":
		row.count, err = r.bytes(row)
	case "type":
		row.dtype, err = r.scalar()
	case "redop":
		row.redop, err = r.scalar()
	case "root":
		var text string
		text, err = r.scalar()
		root, bad := strconv.Atoi(text)
		row.rooted = bad == nil && root >= 0
	case "out_of_place":
		row.outOfPlace, err = r.half(row)
	case "in_place":
		row.inPlace, err = r.half(row)
	case "tuning":
		r.table.tuned = true
		err = r.dec.SkipValue()
	default:
		err = r.dec.SkipValue()
	}
	return err
}

func (r *ncclJSON) bytes(row *ncclRow) (int64, error) {
	text, err := r.scalar()
	n, bad := strconv.ParseInt(text, 10, 64)
	if bad != nil || n < 0 {
		row.bad = tornRow
	}
	return n, err
}

// half reads one half of a result; null is none. Times are in us, rates in
// 1e9 bytes a second, with six decimals; files made from a printed table have
// two, and no tighter check follows from more.
func (r *ncclJSON) half(row *ncclRow) (*ncclHalf, error) {
	if r.dec.PeekKind() == 'n' {
		return nil, r.dec.SkipValue()
	}
	h := &ncclHalf{count: true}
	err := r.object(func(key string) error {
		text, err := r.scalar()
		v, ok := printed(text)
		v.half = max(v.half, tableDigit)
		switch key {
		case "time", "cpu_time":
			h.time, h.cpu = v.times(1e-6), key == "cpu_time"
		case "alg_bw":
			h.alg = v.times(1e9)
		case "bus_bw":
			h.bus = v.times(1e9)
		case "nwrong":
			h.errors, h.checked = v.value, ok
			ok = true
		default:
			ok = true
		}
		if !ok {
			row.bad = tornRow
		}
		return err
	})
	if h.time == (reading{}) || h.alg == (reading{}) || h.bus == (reading{}) {
		row.bad = tornRow
	}
	return h, err
}

// tableDigit is half the last digit of a printed table's two decimals.
const tableDigit = 0.005
