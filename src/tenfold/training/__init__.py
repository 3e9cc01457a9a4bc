"""One training: the step, the loop around it, how it is executed, and its checkpoints."""
