"""Is this run right? Its validation losses against the published curve that it should follow, from its logs alone."""
