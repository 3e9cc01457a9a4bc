"""The claims of this project, proven on the machine where it is installed: a small model, seconds each, real processes,
the trainer's own step."""
