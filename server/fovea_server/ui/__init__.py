"""The page at `/`, where people try models: HTML, CSS and JavaScript, without a build step."""
