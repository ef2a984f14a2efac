package importer

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
)

var nvListed = regexp.MustCompile(`^\d+:\s+(.*?)(?:\s*\([0-9a-fA-F:.]+\))?(?::\s*\(.*\))?$`)

// nvJSON reads the -j output. Its writer sorts the keys (jsoncpp), so versions
// and devices can stand behind or before the tests: the tests, of which there
// are some dozens, are kept until the object ends.
func (s *Sink) nvJSON(name string, in io.Reader) error {
	r := nvbandwidthJSON{ncclJSON: newNCCLJSON(name, in)}
	err := r.object(func(key string) error {
		if key != "nvbandwidth" {
			return r.dec.SkipValue()
		}
		r.found = true
		return r.object(r.key)
	})
	if !r.found {
		return fmt.Errorf("%s: not a -j file of nvbandwidth: no key nvbandwidth; name what nvbandwidth -j printed", name)
	}
	if err != nil {
		s.Flag(name, "the file ends or breaks in the middle; the tests before that are used")
	}
	if r.failed {
		s.Flag(name, "the run reports an error")
	}
	for _, t := range r.tests {
		if err := s.nvTest(&r.run, t); err != nil {
			return err
		}
	}
	return nil
}

type nvbandwidthJSON struct {
	*ncclJSON
	run           nvRun
	tests         []*nvTest
	found, failed bool
}

func (r *nvbandwidthJSON) key(key string) (err error) {
	switch key {
	case "version":
		r.run.version, err = r.scalar()
	case "CUDA Runtime Version":
		var text string
		text, err = r.scalar()
		r.run.cuda = nvCUDA(text)
	case "GPU Device list", "GPU Device info":
		r.run.listed = true
		return r.list(func(int) error {
			text, err := r.scalar()
			if m := nvListed.FindStringSubmatch(text); m != nil && len(r.run.devices) < mostColumns {
				r.run.devices = append(r.run.devices, m[1])
			}
			return err
		})
	case "warning":
		var text string
		text, err = r.scalar()
		r.run.small = strings.Contains(text, "buffer size that is smaller")
	case "error":
		var text string
		text, err = r.scalar()
		r.failed = text != ""
	case "testcases":
		return r.list(r.testcase)
	default:
		err = r.dec.SkipValue()
	}
	return err
}

var errTooMany = errors.New("more tests than the tool has")

func (r *nvbandwidthJSON) testcase(i int) error {
	if i >= mostTests {
		return errTooMany
	}
	t := &nvTest{where: fmt.Sprintf("%s: testcases[%d]", r.name, i)}
	err := r.object(func(key string) (err error) {
		text := ""
		switch key {
		case "name":
			t.name, err = r.scalar()
		case "status":
			text, err = r.scalar()
			if text != "Passed" && text != "Running" {
				t.failed = strings.ToLower(text)
			}
		case "bandwidth_description":
			t.what, err = r.scalar()
		case "bandwidth_matrix":
			err = r.list(func(int) error { return r.cells(t) })
		case "sum":
			text, err = r.scalar()
			v, bad := strconv.ParseFloat(text, 64)
			t.sum, t.summed = v, bad == nil
		default:
			err = r.dec.SkipValue()
		}
		return err
	})
	if err == nil {
		r.tests = append(r.tests, t)
	}
	return err
}

// cells reads a row, whose cells are strings.
func (r *nvbandwidthJSON) cells(t *nvTest) error {
	var cells []string
	err := r.list(func(int) error {
		text, err := r.scalar()
		if len(cells) <= mostColumns {
			cells = append(cells, text)
		}
		return err
	})
	t.row(cells)
	return err
}
