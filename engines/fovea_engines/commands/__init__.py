"""The command build, what it prints, and the options that commands share."""
