"""Takes models apart: shows them, compares two, edits one."""
