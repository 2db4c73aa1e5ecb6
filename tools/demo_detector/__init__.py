"""The program that made the demo detector: handwritten digits on photographs."""
