"""The subcommands of `fovea`, one file each."""
