"""The routes of /v1 for images, and their OpenAPI document."""
