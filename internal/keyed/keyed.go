// Package keyed gives points of recordings that tests write or change the keys that they have.
package keyed

import (
	"fmt"
	"regexp"

	"github.com/go-json-experiment/json"

	"github.com/evenkeel/evenkeel/profile"
)

var key = regexp.MustCompile(`"key":"[^"]*"`)

// Line is a line of a recording of a fingerprint with the key of its own point in the place of
// whichever it has; a line without one stays as it is. It panics at what is not JSON.
func Line(fingerprint, line string) string {
	if !key.MatchString(line) {
		return line
	}
	var s profile.Spot
	if err := json.Unmarshal([]byte(line), &s); err != nil {
		panic(err)
	}
	return key.ReplaceAllLiteralString(line, fmt.Sprintf(`"key":%q`, s.Key(fingerprint)))
}
