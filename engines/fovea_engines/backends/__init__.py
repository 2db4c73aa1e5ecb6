"""The runtimes that compile and execute engines, one file or folder each."""
