"""The commands `inspect`, `diff` and `edit`."""
