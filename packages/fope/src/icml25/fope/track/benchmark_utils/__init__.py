"""The decoder that the solvers of this track train, and the baselines' positions."""
