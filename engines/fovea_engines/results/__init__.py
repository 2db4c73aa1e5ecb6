"""Results of every task, request options, class names, and non-maximum suppression."""
