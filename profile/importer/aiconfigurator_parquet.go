package importer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/parquet-go/parquet-go"
)

const (
	// parquetRows is how many rows are held at a time.
	parquetRows = 256
	// parquetDense is more rows a byte than any table has: times hardly repeat,
	// and the source's own files take 5 bytes a row. A damaged run length can
	// claim billions of empty rows.
	parquetDense = 64
)

// readParquet hands the rows of a flat parquet file on as the cells of a table,
// batch by batch: what is held is one page of every column.
func readParquet(src Source, r io.ReaderAt, v csvVisitor) (err error) {
	// The library panics on some damaged files.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s: damaged: %v; fetch the file again", src.Name, p)
		}
	}()
	if err := parquetFooter(src, r); err != nil {
		return err
	}
	f, err := parquet.OpenFile(r, src.Size)
	if err != nil {
		return fmt.Errorf("%s: cannot be read as parquet: %w; was it cut short? fetch the file again", src.Name, err)
	}
	var names []string
	for _, c := range f.Root().Columns() {
		if !c.Leaf() || c.Repeated() {
			return fmt.Errorf("%s: the column %s holds lists or groups; a table has one value a cell", src.Name, c.Name())
		}
		names = append(names, strings.ToLower(c.Name()))
	}
	if err := v.head(names); err != nil {
		return err
	}
	p := &parquetReader{source: src.Name, visit: v, cells: make([]string, len(names)), most: parquetDense * src.Size}
	for _, group := range f.RowGroups() {
		if err := p.group(group); err != nil {
			return err
		}
	}
	return nil
}

// parquetFooter checks the end of the file, which says how long the description
// of its columns is: the library would take what a damaged file claims, up to 4
// GiB, from memory. (parquet-format, README: four bytes of length, then PAR1.)
func parquetFooter(src Source, r io.ReaderAt) error {
	var end [8]byte
	if src.Size >= 12 {
		if _, err := r.ReadAt(end[:], src.Size-8); err != nil {
			return fmt.Errorf("%s: cannot be read: %w", src.Name, err)
		}
	}
	if string(end[4:]) != "PAR1" || int64(binary.LittleEndian.Uint32(end[:4])) > src.Size-12 {
		return fmt.Errorf("%s: does not end as a parquet file does: it was cut short or is damaged; fetch it again", src.Name)
	}
	return nil
}

type parquetReader struct {
	source string
	visit  csvVisitor
	cells  []string
	row    int
	most   int64 // rows
}

func (p *parquetReader) group(g parquet.RowGroup) (err error) {
	rows := g.Rows()
	defer func() { err = errors.Join(err, rows.Close()) }()
	batch := make([]parquet.Row, parquetRows)
	for {
		n, err := rows.ReadRows(batch)
		for _, row := range batch[:n] {
			if err := p.one(row); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%s: row %d: %w; the file is damaged: fetch it again", p.source, p.row+1, err)
		case n == 0:
			return fmt.Errorf("%s: row %d: no more rows where there should be some; the file is damaged: fetch it again", p.source, p.row+1)
		}
	}
}

func (p *parquetReader) one(row parquet.Row) error {
	if p.row++; int64(p.row) > p.most {
		return fmt.Errorf("%s: more than %d rows in so few bytes: the file is damaged; fetch it again", p.source, p.most)
	}
	clear(p.cells)
	for _, value := range row {
		c := value.Column()
		if c < 0 || c >= len(p.cells) {
			return p.visit.bad(p.row, "the number of cells is not that of the header")
		}
		p.cells[c] = cellOf(value)
	}
	return p.visit.row(p.row, p.cells)
}

// cellOf writes a value as a table would, without losing digits; a missing one
// is an empty cell.
func cellOf(v parquet.Value) string {
	switch v.Kind() {
	case parquet.Boolean:
		return strconv.FormatBool(v.Boolean())
	case parquet.Int32:
		return strconv.FormatInt(int64(v.Int32()), 10)
	case parquet.Int64:
		return strconv.FormatInt(v.Int64(), 10)
	case parquet.Float:
		return strconv.FormatFloat(float64(v.Float()), 'g', -1, 32)
	case parquet.Double:
		return strconv.FormatFloat(v.Double(), 'g', -1, 64)
	case parquet.ByteArray, parquet.FixedLenByteArray:
		return string(v.ByteArray())
	}
	return ""
}
