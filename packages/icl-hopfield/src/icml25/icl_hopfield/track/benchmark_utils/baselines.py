"""Predict each query's label from its own context (m, n, d), (m, n), (m, d)."""

import numpy as np

# The least errors on seeds 1000 to 1002, among 1, 2, 3, 5, 8, 12, 16, 24, 32 and among .02, .05, .1, .2, .3, .5, .8, 1, 1.2
# (times one over the inputs' mean square).
NEIGHBOURS = {"regression": 16, "probes": 2}
RATE = {"regression": 1.0, "probes": 0.3}


def bayes(x, y, q, params):
    """Posterior mean under w ~ N(0, I) and the true noise: ridge regression; least squares without noise."""
    d = x.shape[-1]
    gram = x.swapaxes(1, 2) @ x + max(params["noise"] ** 2, 1e-6) * np.eye(d)
    w = np.linalg.solve(gram, x.swapaxes(1, 2) @ y[..., None])[..., 0]
    return (w * q).sum(-1)


def neighbours(x, y, q, params):
    """Mean label of the nearest inputs."""
    k = params.get("neighbours", NEIGHBOURS[params["problem"]])
    nearest = ((x - q[:, None]) ** 2).sum(-1).argsort(1)[:, :k]
    return np.take_along_axis(y, nearest, 1).mean(1)


def gradient_step(x, y, q, params):
    """One step of gradient descent on the squared error, from zero."""
    rate = params.get("rate", RATE[params["problem"]]) / (x**2).mean()
    return rate * ((x @ q[..., None])[..., 0] * y).mean(-1)


def zero(x, y, q, params):
    """Zero."""
    return np.zeros(len(q))


METHODS = {"bayes": bayes, "neighbours": neighbours, "gradient_step": gradient_step, "zero": zero}


def fit(arrays, params):
    """Predictions of the regression, or of the probes."""
    predict = METHODS[params["method"]]
    arrays = {name: array.astype(np.float64) for name, array in arrays.items()}
    if params["problem"] == "regression":
        return {"predictions": predict(arrays["x"], arrays["y"], arrays["q"], params)}
    names = [name[2:] for name in arrays if name.startswith("x_")]
    contexts = {name: (arrays[f"x_{name}"], arrays[f"y_{name}"]) for name in names}
    return {name: predict(x[:, :-1], y[:, :-1], x[:, -1], params) for name, (x, y) in contexts.items()}
