// Package structure holds no code: its tests enforce the house rules, so that
// `go test ./...` fails when one is broken.
package structure
