"""The forms of results, a file each."""
