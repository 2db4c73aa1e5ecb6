"""Compiles and runs engines. Each runtime has its own module or package."""
