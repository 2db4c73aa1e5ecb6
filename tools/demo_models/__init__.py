"""The program that made the demo models: handwritten digits on photographs, five tasks."""
