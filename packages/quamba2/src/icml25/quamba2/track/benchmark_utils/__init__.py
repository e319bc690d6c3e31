"""What the objective and the solvers of this track share."""
