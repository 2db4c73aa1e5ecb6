"""Images in, boxes out: routes of FastAPI and their OpenAPI page."""
