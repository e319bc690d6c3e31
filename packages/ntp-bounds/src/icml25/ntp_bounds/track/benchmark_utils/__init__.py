"""What the solvers of this track share."""
