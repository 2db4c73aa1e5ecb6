"""Takes models apart: compares two, edits one, ranks its blocks by what INT8 costs."""
