// Package doc reads and writes evenkeel's files: versioned JSON documents, one a
// file, and journals of one JSON object a line.
//
// What it promises:
//
//   - A document says what it is before anything else ([Header].Schema), and a file
//     of another kind or of a newer version is told apart from a broken one.
//   - Decoding is strict ([DecodeStrict]): an unknown key, a key given twice, a key
//     in other letter case, a null where a number belongs, text after the end are
//     errors, never guesses. An error names file, line, field, value and way out.
//   - Writing is atomic ([Save], [WriteAtomic]): a reader, or a power cut, finds the
//     old file or the new one. The same document gives the same bytes.
//   - A journal line counts when its newline is on the disk ([Journal]); a torn last
//     line is dropped when the journal is opened again, and the drop is reported.
//   - Reading lines takes memory for one line, and a line has a limit ([ReadLines]).
//
// Together with the measuring backends and the command this is the only package that
// touches files. It builds on unix only, for the sake of flock.
package doc
