package importer

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// ncclTestsFormat is the format of nccl-tests' text tables, of all generations,
// and of its -J files.
func ncclTestsFormat() Format {
	return Format{
		Name: "nccl-tests",
		Doc:  "logs of nccl-tests and rccl-tests, text or -J JSON: times of all_reduce, all_gather, reduce_scatter, alltoall and sendrecv",
		Read: readNCCLTests,
	}
}

// ncclReader hands out the tables of a source one after another: each row to
// visit, then the table with what its header and footer say. The error at the
// end of the source is io.EOF.
type ncclReader interface {
	next(visit func(*ncclRow)) (*ncclTable, error)
}

// ncclPrinted is the way out of files that programs wrote beside the table.
const ncclPrinted = "instead of the results that rccl-tests -x or a fork wrote as JSON or CSV, import what the test printed"

func readNCCLTests(s *Sink, sources []Source) error {
	for _, src := range sources {
		if err := readNCCLSource(s, src); err != nil {
			return err
		}
	}
	return nil
}

// readNCCLSource goes through a source with two readers. What a row means can
// follow from later ones (the number of ranks of an all_reduce, from the ratio
// of its two bandwidths over all rows) and from the footer (an average that
// does not match), so one reader runs a table ahead and learns, and the other
// follows and hands out the rows. Neither holds more than a table's header.
func readNCCLSource(s *Sink, src Source) error {
	ahead, closeAhead, err := openNCCL(src)
	if err != nil {
		return err
	}
	defer closeAhead()
	behind, closeBehind, err := openNCCL(src)
	if err != nil {
		return err
	}
	defer closeBehind()
	tables, foreign := 0, ""
	for ; ; tables++ {
		var learnt ncclEvidence
		t, err := ahead.next(learnt.row)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		p, err := s.ncclPlan(src.Name, t, &learnt)
		if err != nil {
			return err
		}
		if !p.foreign {
			foreign = "-"
		} else if foreign == "" {
			foreign = p.collective
		}
		if _, err := behind.next(func(r *ncclRow) { s.ncclRow(p, r) }); err != nil {
			return err
		}
	}
	switch {
	case tables == 0:
		return fmt.Errorf("%s: no table of nccl-tests: neither a line of column names (size count type ..) nor a row; is it another tool's file? %s", src.Name, ncclPrinted)
	case foreign != "-":
		return fmt.Errorf("%s: holds %s only, which no law covers; import logs of all_reduce, all_gather, reduce_scatter, alltoall or sendrecv", src.Name, foreign)
	}
	return nil
}

// openNCCL opens a source as JSON if it begins with a brace, else as text.
func openNCCL(src Source) (ncclReader, func(), error) {
	f, err := src.Open()
	if err != nil {
		return nil, nil, err
	}
	in := bufio.NewReaderSize(f, logBuffer)
	done := func() { _ = f.Close() } // read only: nothing is lost
	if beginsObject(in) {
		return newNCCLJSON(src.Name, in), done, nil
	}
	return newNCCLText(src.Name, in), done, nil
}

// beginsObject says whether the first character that is not blank is a brace.
func beginsObject(in *bufio.Reader) bool {
	for n := 1; n <= logBuffer; n++ {
		b, err := in.Peek(n)
		if len(b) < n || err != nil {
			return false
		}
		switch b[n-1] {
		case ' ', '\t', '\n', '\r', 0xEF, 0xBB, 0xBF: // blanks, and the mark that some editors put first
			continue
		case '{':
			return true
		}
		return false
	}
	return false
}
