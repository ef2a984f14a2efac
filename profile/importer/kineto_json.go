package importer

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/go-json-experiment/json/jsontext"
)

// field is a key of a trace event that the importer reads; all others are
// skipped without a look, as some have carried secrets.
type field int

const (
	fieldPhase field = iota
	fieldCategory
	fieldName
	fieldPid
	fieldTid
	fieldTs
	fieldDur
	fieldExternal
	fieldCorrelation
	fieldDevice
	fieldDims
	fieldTypes
	fieldStrides
	fieldConcrete
	fieldCollective
	fieldIn
	fieldOut
	fieldGroupSize
	fieldDType
	fieldInSplit
	fieldOutSplit
	fieldGroupName
	fieldGroupDesc
	fieldGroupRanks
	fieldSeq
	fieldRank
	fields
)

// eventField names the keys of an event itself.
func eventField(key string) field {
	switch key {
	case "ph":
		return fieldPhase
	case "cat":
		return fieldCategory
	case "name":
		return fieldName
	case "pid":
		return fieldPid
	case "tid":
		return fieldTid
	case "ts":
		return fieldTs
	case "dur":
		return fieldDur
	}
	return fields
}

// argField names the keys of an event's args. Builds of 2021 and 2022 write
// some of them in lower case.
func argField(key string) field {
	switch key {
	case "External id", "external id":
		return fieldExternal
	case "correlation":
		return fieldCorrelation
	case "device":
		return fieldDevice
	case "Input Dims", "Input dims":
		return fieldDims
	case "Input type":
		return fieldTypes
	case "Input Strides":
		return fieldStrides
	case "Concrete Inputs":
		return fieldConcrete
	case "Collective name":
		return fieldCollective
	case "In msg nelems":
		return fieldIn
	case "Out msg nelems":
		return fieldOut
	case "Group size":
		return fieldGroupSize
	case "dtype":
		return fieldDType
	case "In split size":
		return fieldInSplit
	case "Out split size":
		return fieldOutSplit
	case "Process Group Name":
		return fieldGroupName
	case "Process Group Description":
		return fieldGroupDesc
	case "Process Group Ranks":
		return fieldGroupRanks
	case "Seq":
		return fieldSeq
	case "Rank":
		return fieldRank
	}
	return fields
}

// traceEvent is one event: the raw JSON of the fields it has. It is used again
// for the next event.
type traceEvent struct {
	number int // in the file, from 1
	raw    [fields][]byte
}

func (e *traceEvent) clear() {
	for i := range e.raw {
		e.raw[i] = e.raw[i][:0]
	}
}

// text is a field's string without its quotes; nil if it is none. It is valid
// until the next event.
func (e *traceEvent) text(f field) []byte {
	raw := e.raw[f]
	if len(raw) < 2 || raw[0] != '"' {
		return nil
	}
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1]
	}
	text, err := jsontext.AppendUnquote(nil, raw)
	if err != nil {
		return nil
	}
	return text
}

// float is a field's finite number, which some writers put into quotes.
func (e *traceEvent) float(f field) (float64, bool) {
	raw := e.raw[f]
	if len(raw) > 1 && raw[0] == '"' {
		raw = raw[1 : len(raw)-1]
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	return v, err == nil && !math.IsNaN(v) && !math.IsInf(v, 0)
}

// whole is a field's whole number.
func (e *traceEvent) whole(f field) (int64, bool) {
	raw := e.raw[f]
	if len(raw) > 1 && raw[0] == '"' {
		raw = raw[1 : len(raw)-1]
	}
	if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return n, true
	}
	v, ok := e.float(f)
	if !ok || v != math.Trunc(v) || math.Abs(v) > 1<<53 {
		return 0, false
	}
	return int64(v), true
}

// traceDevice is a GPU as a trace describes it.
type traceDevice struct {
	name  string
	units int64 // SMs or CUs; 0 where it does not say
}

// traceHead is what a trace says beside its events.
type traceHead struct {
	devices map[int64]traceDevice // by id
	base    float64               // us that ts counts from
	cuda    int64                 // 12040 is 12.4
	hip     int64                 // 71326183 is 7.13
	nccl    string                // "2.22.3"
	rank    int64                 // -1 where it does not say
	world   int64
}

// errNoTrace says that a file is not a profiler's trace.
var errNoTrace = errors.New(`no "traceEvents": not a trace of the PyTorch profiler; name what its export_chrome_trace wrote`)

// scanTrace hands every event of a trace to visit and returns what the file
// says beside them. torn says why the file ends early; what came before counts.
func scanTrace(src Source, visit func(*traceEvent)) (head traceHead, torn string, err error) {
	file, err := src.Open()
	if err != nil {
		return head, "", err
	}
	defer file.Close()
	in, err := inflate(file)
	if err != nil {
		return head, "", fmt.Errorf("%s: %w", src.Name, err)
	}
	w := &traceWalker{
		dec:   jsontext.NewDecoder(&mender{in: in}, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)),
		visit: visit, head: traceHead{rank: -1, devices: map[int64]traceDevice{}},
	}
	err = w.file()
	if err == nil && w.found {
		if torn, err = w.behind(); err == nil {
			return w.head, torn, nil
		}
	}
	switch {
	case err == nil && !w.found, err != nil && !w.found && damaged(err):
		return head, "", fmt.Errorf("%s: %w", src.Name, errNoTrace)
	case err != nil && damaged(err):
		return w.head, fmt.Sprintf("the file breaks off or is damaged after event %d; what came before was read", w.event.number), nil
	case err != nil:
		return head, "", fmt.Errorf("%s: after event %d: %w", src.Name, w.event.number, err)
	}
	return w.head, "", nil
}

// behind says what stands behind a trace: nothing, or what is not read, as a second one
// whose ids would be taken for those of the first.
func (w *traceWalker) behind() (more string, err error) {
	_, err = w.dec.ReadToken()
	var syntax *jsontext.SyntacticError
	switch {
	case err == io.EOF:
		return "", nil
	case err == nil, errors.As(err, &syntax) && !errors.Is(err, io.ErrUnexpectedEOF):
		const more = "more follows behind the end of the trace, which has %s: it was not read; import traces that were put one behind the other from a file each"
		return fmt.Sprintf(more, units.Count(w.event.number, "event")), nil
	}
	return "", err
}

// gzipMagic is what compressed files begin with.
var gzipMagic = []byte{0x1f, 0x8b}

// inflate undoes gzip, told by its magic bytes.
func inflate(r io.Reader) (io.Reader, error) {
	in := bufio.NewReaderSize(r, 1<<16)
	if magic, _ := in.Peek(2); !bytes.Equal(magic, gzipMagic) {
		return in, nil
	}
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, fmt.Errorf("gzip: %w", err)
	}
	return z, nil
}

// damaged tells bytes that are cut off or broken, as jobs that are killed leave
// them, from a file that cannot be read.
func damaged(err error) bool {
	var syntax *jsontext.SyntacticError
	var corrupt flate.CorruptInputError
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, gzip.ErrChecksum) ||
		errors.Is(err, gzip.ErrHeader) || errors.As(err, &corrupt) || errors.As(err, &syntax)
}

// traceWalker goes through a trace token by token, so that what is not wanted is
// never held. Keys may come in any order and more than once: the last counts.
type traceWalker struct {
	dec   *jsontext.Decoder
	visit func(*traceEvent)
	event traceEvent
	head  traceHead
	found bool // the events
}

// file reads the whole file: an object with traceEvents among its keys, or the
// bare array of events that older viewers know too.
func (w *traceWalker) file() error {
	if w.dec.PeekKind() == '[' {
		return w.events()
	}
	return w.object(w.top)
}

// object walks an object and lets read take the value of each key. A value of
// another kind is skipped.
func (w *traceWalker) object(read func(key []byte) error) error {
	if w.dec.PeekKind() != '{' {
		return w.dec.SkipValue()
	}
	if _, err := w.dec.ReadToken(); err != nil {
		return err
	}
	for w.dec.PeekKind() != '}' {
		raw, err := w.dec.ReadValue()
		if err != nil {
			return err
		}
		if err := read(raw[1 : len(raw)-1]); err != nil {
			return err
		}
	}
	_, err := w.dec.ReadToken()
	return err
}

// array walks an array and lets read take each element.
func (w *traceWalker) array(read func() error) error {
	if w.dec.PeekKind() != '[' {
		return w.dec.SkipValue()
	}
	if _, err := w.dec.ReadToken(); err != nil {
		return err
	}
	for w.dec.PeekKind() != ']' {
		if err := read(); err != nil {
			return err
		}
	}
	_, err := w.dec.ReadToken()
	return err
}

func (w *traceWalker) top(key []byte) error {
	switch string(key) {
	case "traceEvents":
		return w.events()
	case "deviceProperties":
		return w.array(w.device)
	case "distributedInfo":
		return w.object(w.distributed)
	case "baseTimeNanoseconds":
		ns, err := w.float()
		w.head.base = ns / 1000
		return err
	case "cuda_runtime_version":
		return w.whole(&w.head.cuda)
	case "hip_runtime_version":
		return w.whole(&w.head.hip)
	}
	return w.dec.SkipValue()
}

func (w *traceWalker) distributed(key []byte) error {
	switch string(key) {
	case "rank":
		return w.whole(&w.head.rank)
	case "world_size":
		return w.whole(&w.head.world)
	case "nccl_version":
		return w.text(&w.head.nccl)
	}
	return w.dec.SkipValue()
}

// maxDevices is more GPUs than one process sees.
const maxDevices = 1024

func (w *traceWalker) device() error {
	id, d := int64(len(w.head.devices)), traceDevice{}
	err := w.object(func(key []byte) error {
		switch string(key) {
		case "id":
			return w.whole(&id)
		case "name":
			return w.text(&d.name)
		case "numSms":
			return w.whole(&d.units)
		}
		return w.dec.SkipValue()
	})
	if err == nil && len(w.head.devices) < maxDevices {
		w.head.devices[id] = d
	}
	return err
}

func (w *traceWalker) events() error {
	if w.dec.PeekKind() == '[' {
		w.found = true
	}
	return w.array(func() error {
		w.event.clear()
		w.event.number++
		if err := w.object(w.eventKey); err != nil {
			return err
		}
		w.visit(&w.event)
		return nil
	})
}

func (w *traceWalker) eventKey(key []byte) error {
	if string(key) == "args" {
		return w.object(w.argKey)
	}
	return w.keep(eventField(string(key)))
}

func (w *traceWalker) argKey(key []byte) error { return w.keep(argField(string(key))) }

// keep copies a value, since the decoder's buffer moves on.
func (w *traceWalker) keep(f field) error {
	if f == fields {
		return w.dec.SkipValue()
	}
	raw, err := w.dec.ReadValue()
	if err == nil {
		w.event.raw[f] = append(w.event.raw[f][:0], raw...)
	}
	return err
}

// scalar reads a value that is no object or array; nil for those.
func (w *traceWalker) scalar() (*traceEvent, error) {
	if k := w.dec.PeekKind(); k == '{' || k == '[' {
		return nil, w.dec.SkipValue()
	}
	raw, err := w.dec.ReadValue()
	e := &traceEvent{}
	e.raw[0] = raw
	return e, err
}

func (w *traceWalker) float() (float64, error) {
	e, err := w.scalar()
	if e == nil || err != nil {
		return 0, err
	}
	v, _ := e.float(0)
	return v, nil
}

func (w *traceWalker) whole(to *int64) error {
	e, err := w.scalar()
	if e == nil || err != nil {
		return err
	}
	if v, ok := e.whole(0); ok {
		*to = v
	}
	return nil
}

func (w *traceWalker) text(to *string) error {
	e, err := w.scalar()
	if e == nil || err != nil {
		return err
	}
	*to = string(e.text(0))
	return nil
}
