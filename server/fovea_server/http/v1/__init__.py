"""Images in, boxes out: FastAPI routes and their OpenAPI page."""
