"""Programs that make what ships with Fovea; no part of the package."""
