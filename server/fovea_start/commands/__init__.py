"""The command `init`."""
