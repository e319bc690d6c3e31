"""The networks that all solvers of this track train, the training loop, and the optimizers."""
