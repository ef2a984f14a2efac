// Package host finds out what machine this is and watches it for disturbances.
//
// Everything is read from the files in which Linux keeps it, through an [fs.FS],
// so that machines other than this one can be tested. Nothing here fails:
// whatever is missing or garbled leaves a zero value and a note in plain words,
// because an inventory with holes is worth more than none.
package host
