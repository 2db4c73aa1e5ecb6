"""The commands of first steps."""
