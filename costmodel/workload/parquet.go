package workload

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/parquet-go/parquet-go"
)

const (
	// parquetValues is how many values are held at a time.
	parquetValues = 4096
	// parquetDense is more values a byte than any file has: a page of equal values
	// takes tens of bytes for tens of thousands. A damaged run length can claim
	// billions.
	parquetDense = 4096
)

// readParquet reads lengths from a column of whole numbers, or of floating-point
// ones that are whole. Only that column is read; one inside a group is named
// with points, "meta.length".
func readParquet(name string, r io.ReaderAt, size int64, column string) (lengths []units.Tokens, err error) {
	// The library panics on some damaged files.
	defer func() {
		if p := recover(); p != nil {
			lengths, err = nil, fmt.Errorf("%s: damaged: %v; write or fetch the file again", name, p)
		}
	}()
	if err := parquetFooter(name, r, size); err != nil {
		return nil, err
	}
	f, err := parquet.OpenFile(r, size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
	if err != nil {
		return nil, fmt.Errorf("%s: cannot be read as parquet: %w; was it cut short? write or fetch it again", name, err)
	}
	var columns []string
	for _, path := range f.Schema().Columns() {
		columns = append(columns, strings.Join(path, "."))
	}
	if len(columns) == 0 {
		return nil, fmt.Errorf("%s: has no columns", name)
	}
	i, err := choose(name, columns, column)
	if err != nil {
		return nil, err
	}
	p := &parquetColumn{intake: intake{name: name, column: columns[i], unit: "row"}, most: parquetDense * size}
	for _, group := range f.RowGroups() {
		if err := p.chunk(group.ColumnChunks()[i]); err != nil {
			return nil, err
		}
	}
	return p.done()
}

// parquetFooter checks the end of the file, which says how long the description
// of its columns is: the library would take what a damaged file claims, up to 4
// GiB, from memory. (parquet-format, README: four bytes of length, then PAR1.)
func parquetFooter(name string, r io.ReaderAt, size int64) error {
	var end [8]byte
	if size >= 12 {
		if _, err := r.ReadAt(end[:], size-8); err != nil {
			return fmt.Errorf("%s: cannot be read: %w", name, err)
		}
	}
	if string(end[4:]) != "PAR1" || int64(binary.LittleEndian.Uint32(end[:4])) > size-12 {
		return fmt.Errorf("%s: does not end as a parquet file does: it was cut short or is damaged; write or fetch it again", name)
	}
	return nil
}

// parquetColumn reads one column, chunk by chunk.
type parquetColumn struct {
	intake
	most   int64
	values [parquetValues]parquet.Value
}

func (p *parquetColumn) chunk(c parquet.ColumnChunk) (err error) {
	pages := c.Pages()
	defer func() { err = errors.Join(err, pages.Close()) }()
	for {
		page, err := pages.ReadPage()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return p.damaged(err)
		}
		err = p.page(page)
		parquet.Release(page)
		if err != nil {
			return err
		}
	}
}

func (p *parquetColumn) damaged(err error) error {
	p.at++
	return p.bad("%w; the file is damaged: write or fetch it again", err)
}

func (p *parquetColumn) page(page parquet.Page) error {
	values := page.Values()
	for {
		n, err := values.ReadValues(p.values[:])
		for _, v := range p.values[:n] {
			if p.at++; int64(p.at) > p.most {
				return p.bad("too many values in so few bytes: the file is damaged; write or fetch it again")
			}
			if err := p.one(v); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return p.damaged(err)
		case n == 0:
			return p.damaged(errors.New("no more values where there should be some"))
		}
	}
}

func (p *parquetColumn) one(v parquet.Value) error {
	if v.RepetitionLevel() > 0 {
		return p.bad("holds lists: name a column that holds their lengths")
	}
	switch v.Kind() {
	case parquet.Int32:
		return p.whole(int64(v.Int32()))
	case parquet.Int64:
		return p.whole(v.Int64())
	case parquet.Float:
		return p.add(strconv.FormatFloat(float64(v.Float()), 'f', -1, 32))
	case parquet.Double:
		return p.add(strconv.FormatFloat(v.Double(), 'f', -1, 64))
	}
	if v.IsNull() {
		return p.bad("null: %w", errNull)
	}
	return p.bad("holds values of type %s, no numbers: name another column", v.Kind())
}

func (p *parquetColumn) whole(v int64) error {
	if v >= 1 && v <= int64(MaxLength) {
		return p.push(units.Tokens(v))
	}
	return p.add(strconv.FormatInt(v, 10))
}
