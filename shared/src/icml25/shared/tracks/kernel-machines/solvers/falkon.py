"""Falkon (Rudi, Carratino, Rosasco, 2017): Nystrom centres, a Cholesky preconditioner and conjugate gradients.

Minimises sum_i (f(x_i) - y_i)^2 / 2 + ||f||^2 / (2C) over f in the span of M uniformly drawn centres, in float32. The kernel
between rows and centres is computed in chunks at each iteration; the M x M preconditioner is held, as in the original.
"""

from icml25.shared.isolated import BaseSolver, measure

CHUNK = 2048
ITERATIONS, TOLERANCE = 50, 1e-3  # the original stops by iterations; here also on the residual of the normal equations


def warm_up():
    """Load what the clock should not see."""
    import numpy as np

    X = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    fit_predict(
        {"X_train": X, "y_train": X[:, 0], "X_test": X},
        {"gamma": 0.5, "n_centres": 10, "C": 1.0, "seed": 0, "classes": False},
    )


def fit_predict(arrays, params):
    """Train and predict; several classes are one-vs-rest columns of -1 and +1."""
    import numpy as np
    import torch

    X, y = torch.from_numpy(arrays["X_train"]), arrays["y_train"]
    labels = np.unique(y) if params["classes"] else None
    Y = y[:, None]
    if labels is not None:
        Y = 2.0 * ((labels[1:] if len(labels) == 2 else labels) == Y) - 1
    Y = torch.from_numpy(np.asarray(Y, dtype=np.float32))
    n, M, gamma = len(X), min(params["n_centres"], len(X)), params["gamma"]
    centres = X[torch.randperm(n, generator=torch.Generator().manual_seed(params["seed"]))[:M]]
    centre_norms = centres.square().sum(1)
    ridge = 1 / (params["C"] * n)

    def kernel(x):
        d2 = torch.addmm(centre_norms[None], x, centres.T, alpha=-2).add_(x.square().sum(1, keepdim=True))
        return d2.clamp_min_(0).mul_(-gamma).exp_()

    def factor_in_place(symmetric):
        """Overwrite a symmetric matrix by its upper Cholesky factor: the lower one of its transpose, column-major."""
        torch.linalg.cholesky(symmetric.mT, out=symmetric.mT)

    # Preconditioner T^-1 A^-1 with T^T T = K_MM + jitter and A^T A = T T^T / M + ridge.
    T = kernel(centres)
    T.diagonal().add_(M * torch.finfo(T.dtype).eps)
    factor_in_place(T)
    A = (T @ T.T).div_(M)
    A.diagonal().add_(ridge)
    factor_in_place(A)

    def solve(factor, b, transposed=False):
        return torch.linalg.solve_triangular(factor.T if transposed else factor, b, upper=not transposed)

    def normal_product(v=None):
        """Return K_nM^T (K_nM v) / n, or K_nM^T Y / n."""
        total = 0
        for i in range(0, n, CHUNK):
            K = kernel(X[i : i + CHUNK])
            total = total + K.T @ (Y[i : i + CHUNK] if v is None else K @ v)
        return total / n

    def preconditioned(b):
        w = solve(A, b)
        h = solve(T, normal_product(solve(T, w)), transposed=True)
        return solve(A, h + ridge * w, transposed=True)

    r = solve(A, solve(T, normal_product(), transposed=True), transposed=True)
    beta, p = torch.zeros_like(r), r.clone()
    rr = first = (r * r).sum(0)
    iterations = 0
    while iterations < ITERATIONS and (rr > TOLERANCE**2 * first).any():
        q = preconditioned(p)
        step = rr / (p * q).sum(0)
        beta, r = beta + step * p, r - step * q
        rr, before = (r * r).sum(0), rr
        p = r + (rr / before) * p
        iterations += 1
    weights = solve(T, solve(A, beta))
    values = torch.cat([kernel(x) @ weights for x in torch.from_numpy(arrays["X_test"]).split(CHUNK)]).numpy()
    if labels is None:
        return {"prediction": values[:, 0], "iterations": iterations}
    if len(labels) == 2:
        return {"prediction": labels[(values[:, 0] > 0).astype(int)], "score": values[:, 0], "iterations": iterations}
    return {"prediction": labels[values.argmax(1)], "score": values, "iterations": iterations}


class Solver(BaseSolver):
    """Falkon with as many centres as the others have features."""

    name = "Falkon"
    sampling_strategy = "run_once"

    def skip(self, conditioning, **_):
        """Leave out the data set that counts kernel products."""
        return conditioning, "counts no kernel products"

    def set_objective(self, X_train, y_train, X_test, task, gamma, n_features, C_squared, seed, **_):
        """Note the problem."""
        self.arrays = {"X_train": X_train, "y_train": y_train, "X_test": X_test}
        self.params = {
            "gamma": gamma,
            "n_centres": n_features,
            "C": C_squared,
            "seed": int(seed),
            "classes": task != "regression",
        }

    def run(self, _):
        """Train and predict in a process of its own."""
        self.result = measure(__file__, "fit_predict", self.arrays, self.params)

    def get_result(self):
        """Return predictions, seconds and memory."""
        return self.result
