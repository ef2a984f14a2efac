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

// readNCCLTests leaves out a log of collectives that no law covers, as scripts that run every
// test of the suite write it, and fails where no log of the call is of another.
func readNCCLTests(s *Sink, sources []Source) error {
	var uncovered []error
	for _, src := range sources {
		foreign, err := readNCCLSource(s, src)
		if err != nil {
			return err
		}
		if foreign != "" {
			what := "holds " + foreign + " only, which no law covers"
			s.Flag(src.Name, what)
			uncovered = append(uncovered, fmt.Errorf("%s: %s; import logs of all_reduce, all_gather, reduce_scatter, alltoall or sendrecv", src.Name, what))
		}
	}
	if len(uncovered) > 0 && len(uncovered) == len(sources) {
		return uncovered[0]
	}
	return nil
}

// readNCCLSource goes through a source with two readers. What a row means can
// follow from later ones (the number of ranks of an all_reduce, from the ratio
// of its two bandwidths over all rows) and from the footer (an average that
// does not match), so one reader runs a table ahead and learns, and the other
// follows and hands out the rows. Neither holds more than a table's header.
//
// foreign is a collective that no law covers, where the source has no table of another.
func readNCCLSource(s *Sink, src Source) (foreign string, err error) {
	ahead, closeAhead, err := openNCCL(src)
	if err != nil {
		return "", err
	}
	defer closeAhead()
	behind, closeBehind, err := openNCCL(src)
	if err != nil {
		return "", err
	}
	defer closeBehind()
	tables := 0
	for ; ; tables++ {
		var learnt ncclEvidence
		t, err := ahead.next(learnt.row)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", err
		}
		p, err := s.ncclPlan(src.Name, t, &learnt)
		if err != nil {
			return "", err
		}
		if !p.foreign {
			foreign = "-"
		} else if foreign == "" {
			foreign = p.collective
		}
		if _, err := behind.next(func(r *ncclRow) { s.ncclRow(p, r) }); err != nil {
			return "", err
		}
	}
	if tables == 0 {
		return "", fmt.Errorf("%s: no table of nccl-tests: neither a line of column names (size count type ..) nor a row; is it another tool's file? %s", src.Name, ncclPrinted)
	}
	if foreign == "-" {
		foreign = ""
	}
	return foreign, nil
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
