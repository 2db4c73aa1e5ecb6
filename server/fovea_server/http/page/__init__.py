"""The page at `/`, where people try models: HTML, CSS and JavaScript, sent without comments."""
