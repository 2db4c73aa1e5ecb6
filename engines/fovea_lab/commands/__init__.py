"""The commands `diff`, `edit` and `sensitivity`."""
