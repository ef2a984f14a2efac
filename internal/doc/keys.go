package doc

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/internal/spelling"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	// maxListed is how many known keys an error lists when none is near.
	maxListed = 12
	// maxPath is how many steps of a field's path an error tells.
	maxPath = 20
)

// unknownKey says that name is no key of the struct t, and which one may be meant.
func unknownKey(name string, t reflect.Type) string {
	msg := fmt.Sprintf("unknown key %q", shorten(name))
	known := knownKeys(t)
	if near := spelling.Hint(name, known); near != "" {
		return msg + near
	}
	if len(known) == 0 {
		return msg
	}
	listed := known[:min(len(known), maxListed)]
	more := ""
	if n := len(known) - len(listed); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return msg + " (known keys: " + strings.Join(listed, ", ") + more + ")"
}

// knownKeys returns the JSON names of the struct t in order of declaration, those of
// embedded structs in their place.
func knownKeys(t reflect.Type) []string {
	var keys []string
	eachField(t, func(name string, _ reflect.Type) { keys = append(keys, name) })
	return keys
}

// eachField calls f with the JSON name and type of each field of the struct t.
func eachField(t reflect.Type, f func(name string, t reflect.Type)) {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t.Kind() != reflect.Struct {
		return
	}
	for i := range t.NumField() {
		sf := t.Field(i)
		tag := sf.Tag.Get("json")
		name, options, _ := strings.Cut(tag, ",")
		switch {
		case tag == "-" || !sf.IsExported() && !sf.Anonymous:
		case sf.Anonymous && name == "", options == "embed":
			eachField(sf.Type, f)
		case name == "":
			f(sf.Name, sf.Type)
		default:
			f(name, sf.Type)
		}
	}
}

// fieldPath writes a JSON pointer the way people write it: a.b[3].c. A pointer does
// not tell an index from a key that is a number, so t is followed along; without a
// type a number is taken for an index.
func fieldPath(t reflect.Type, p jsontext.Pointer) string {
	var b strings.Builder
	steps := 0
	for token := range p.Tokens() {
		if steps++; steps > maxPath {
			b.WriteString("...")
			break
		}
		for t != nil && t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if isIndex(t, token) {
			b.WriteString("[" + token + "]")
		} else {
			writeKey(&b, token)
		}
		t = child(t, token)
	}
	return b.String()
}

func isIndex(t reflect.Type, token string) bool {
	if t != nil && (t.Kind() == reflect.Map || t.Kind() == reflect.Struct && len(knownKeys(t)) > 0) {
		return false
	}
	_, err := strconv.ParseUint(token, 10, 64)
	return err == nil
}

// writeKey appends .key, or ["key"] for a key that would read as something else.
func writeKey(b *strings.Builder, key string) {
	plain := key != "" && !strings.ContainsFunc(key, func(r rune) bool {
		return r <= ' ' || r == '.' || r == '[' || r == ']' || r == '"' || r == ':' || r == 0x7f || !strconv.IsPrint(r)
	})
	switch {
	case !plain:
		b.WriteString("[" + strconv.Quote(shorten(key)) + "]")
	case b.Len() == 0:
		b.WriteString(shorten(key))
	default:
		b.WriteString("." + shorten(key))
	}
}

// child returns the type of t's element or member, or nil if t does not tell.
func child(t reflect.Type, token string) reflect.Type {
	if t == nil {
		return nil
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array, reflect.Map:
		return t.Elem()
	case reflect.Struct:
		var found reflect.Type
		eachField(t, func(name string, ft reflect.Type) {
			if name == token {
				found = ft
			}
		})
		return found
	}
	return nil
}
