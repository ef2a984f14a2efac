// Command evenkeel measures what this machine's devices and links really do,
// fits a cost model with a stated error to it, plans long-context training
// steps on unequal devices, and checks that the model still tells the truth.
//
// Run `evenkeel --help` for its verbs; README.md says how to begin.
package main

import "os"

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
