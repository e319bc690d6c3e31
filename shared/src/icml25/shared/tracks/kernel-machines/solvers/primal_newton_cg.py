"""Kernel ridge regression in the representer coefficients, where the Hessian is C K K + K, by conjugate gradients.

One CG product is one product with the Hessian, although it takes two with K. The duality gap is looked at after each.
"""

from icml25.shared.isolated import BaseSolver, measure

MOST = 10_000


def fit_predict(arrays, params):
    """Count CG products until the relative duality gap is reached."""
    import numpy as np
    from sklearn.metrics.pairwise import rbf_kernel

    X, y, C = arrays["X_train"].astype(np.float64), arrays["y_train"], params["C"]
    K = rbf_kernel(X, gamma=params["gamma"])
    w, Kw = np.zeros_like(y), np.zeros_like(y)
    r = C * (K @ y)
    p, rr = r.copy(), r @ r
    gap, products = np.inf, 0

    def dual(a, Ka):
        return -a @ Ka / 2 - a @ a / (2 * C) + a @ y

    while products < MOST:
        Kp = K @ p
        Hp = C * (K @ Kp) + Kp
        products += 1
        step = rr / (p @ Hp)
        w, Kw, r = w + step * p, Kw + step * Kp, r - step * Hp
        residual = y - Kw
        primal = w @ Kw / 2 + C * (residual @ residual) / 2
        # The tighter of two dual points: the coefficients, and the residual that belongs to them at the optimum.
        bound = max(dual(w, Kw), dual(C * residual, C * (K @ residual)))
        gap = (primal - bound) / primal
        if gap <= params["tol"]:
            break
        rr, before = r @ r, rr
        p = r + (rr / before) * p
    prediction = rbf_kernel(arrays["X_test"].astype(np.float64), X, gamma=params["gamma"]) @ w
    return {"prediction": prediction, "cg_products": products, "relative_gap": gap}


class Solver(BaseSolver):
    """Newton-CG in the primal."""

    name = "Primal Newton-CG"
    sampling_strategy = "run_once"

    def skip(self, conditioning, **_):
        """Run only where kernel products are counted."""
        return not conditioning, "made to count kernel products"

    def set_objective(self, X_train, y_train, X_test, gamma, C_squared, **_):
        """Note the problem."""
        self.arrays = {"X_train": X_train, "y_train": y_train, "X_test": X_test}
        self.params = {"gamma": gamma, "C": C_squared, "tol": 1e-3}

    def run(self, _):
        """Train and predict in a process of its own."""
        self.result = measure(__file__, "fit_predict", self.arrays, self.params)

    def get_result(self):
        """Return predictions, seconds, memory, products and gap."""
        return self.result
