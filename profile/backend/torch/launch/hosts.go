package launch

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ExpandHosts expands a Slurm node list such as "h[001-004,7],x1" into host
// names, in order. Brackets may occur more than once in a name, and numbers
// keep the leading zeros of their range's start. It refuses lists of more than
// 65,536 names.
func ExpandHosts(list string) ([]string, error) {
	items, err := splitHosts(list)
	if err != nil {
		return nil, err
	}
	var hosts []string
	for _, item := range items {
		names, err := expandName(item)
		if err != nil {
			return nil, fmt.Errorf("node list %q: %q: %w", list, item, err)
		}
		if hosts = append(hosts, names...); len(hosts) > maxTasks {
			return nil, fmt.Errorf("node list %q: more than %d hosts", list, maxTasks)
		}
	}
	return hosts, nil
}

// splitHosts cuts a list at the commas outside brackets.
func splitHosts(list string) ([]string, error) {
	var items []string
	start, open := 0, false
	for i := range len(list) {
		switch c := list[i]; {
		case c == '[' && open, c == ']' && !open:
			return nil, fmt.Errorf("node list %q: unexpected %q at byte %d", list, c, i)
		case c == '[' || c == ']':
			open = c == '['
		case c == ',' && !open:
			items, start = append(items, list[start:i]), i+1
		}
	}
	if open {
		return nil, fmt.Errorf("node list %q: a bracket is not closed", list)
	}
	return append(items, list[start:]), nil
}

// expandName expands the brackets of one name, the first varying slowest.
func expandName(item string) ([]string, error) {
	if item == "" {
		return nil, errors.New("a host without a name")
	}
	names := []string{""}
	for rest := item; rest != ""; {
		head, tail, bracket := strings.Cut(rest, "[")
		numbers, after := []string{""}, ""
		if bracket {
			inside, left, _ := strings.Cut(tail, "]")
			var err error
			if numbers, err = expandNumbers(inside); err != nil {
				return nil, err
			}
			after = left
		}
		if len(names)*len(numbers) > maxTasks {
			return nil, fmt.Errorf("more than %d hosts", maxTasks)
		}
		names, rest = product(names, head, numbers), after
	}
	return names, nil
}

func product(names []string, head string, numbers []string) []string {
	all := make([]string, 0, len(names)*len(numbers))
	for _, name := range names {
		for _, number := range numbers {
			all = append(all, name+head+number)
		}
	}
	return all
}

// expandNumbers expands the inside of brackets, such as "001-004,7".
func expandNumbers(inside string) ([]string, error) {
	var numbers []string
	for part := range strings.SplitSeq(inside, ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		from, err := strconv.ParseUint(low, 10, 32)
		to, err2 := strconv.ParseUint(high, 10, 32)
		if err != nil || err2 != nil {
			return nil, fmt.Errorf("%q: want a number or a range of numbers", part)
		}
		if to < from || to-from >= maxTasks-uint64(len(numbers)) {
			return nil, fmt.Errorf("%q: want an ascending range of at most %d numbers", part, maxTasks)
		}
		for n := from; n <= to; n++ {
			numbers = append(numbers, fmt.Sprintf("%0*d", len(low), n))
		}
	}
	return numbers, nil
}
