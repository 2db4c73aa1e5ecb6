"""Compiles and runs engines. Each runtime has its own file or directory."""
