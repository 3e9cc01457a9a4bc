"""The ladder: every optimisation as a rung that changes one option, measured on the machine at hand and proven
harmless."""
