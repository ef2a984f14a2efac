package main

import (
	"github.com/evenkeel/evenkeel/profile/backend/cpu"
	"github.com/spf13/cobra"
)

// worker is how calibrate starts itself a process per device or rank. It is
// not for users and not in the help.
func (a *app) worker() *cobra.Command {
	return &cobra.Command{
		Use:    "worker",
		Hidden: true,
		Short:  "A worker process of calibrate",
		RunE: func(c *cobra.Command, args []string) error {
			config, err := cpu.ParseWorkerArgs(args)
			if err != nil {
				return usageError{err}
			}
			return cpu.Work(c.Context(), config, a.in, a.out)
		},
	}
}
