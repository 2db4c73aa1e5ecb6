"""The page at `/`, where people try models: HTML, CSS and JavaScript as they are served."""
