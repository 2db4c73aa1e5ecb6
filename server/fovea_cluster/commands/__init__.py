"""The command `ray`."""
