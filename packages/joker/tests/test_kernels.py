import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist, pdist

from icml25.joker import RandomFeatures, kernel_function, mean_sqdist_gamma

NAMED = {
    "rbf": lambda x, z: np.exp(-0.3 * cdist(x, z, "sqeuclidean")),
    "laplace": lambda x, z: np.exp(-0.3 * cdist(x, z, "cityblock")),
    "student": lambda x, z: 1 / (1 + 0.3 * cdist(x, z, "sqeuclidean")),
}


def gaussian(n, d=4, seed=0):
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kernel", NAMED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernel_matrices(kernel, dtype):
    x, z = gaussian(20), gaussian(7, seed=1)
    K = kernel_function(kernel, 0.3)(x.to(dtype), z.to(dtype))
    assert K.dtype == dtype
    np.testing.assert_allclose(K.numpy(), NAMED[kernel](x.numpy(), z.numpy()), atol=1e-6)


@pytest.mark.parametrize("kernel", NAMED)
def test_features_estimate_the_kernel_at_the_monte_carlo_rate(kernel):
    x = gaussian(40)
    K = torch.from_numpy(NAMED[kernel](x.numpy(), x.numpy()))
    sizes, errors = [64, 256, 1024, 4096], []
    for M in sizes:
        draws = [RandomFeatures.draw(kernel, 0.3, 4, M, torch.Generator().manual_seed(s))(x) for s in range(8)]
        errors.append(np.mean([float((psi @ psi.T - K).abs().mean()) for psi in draws]))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.1)


def test_feature_columns_are_slices_of_the_whole():
    x, features = gaussian(9), RandomFeatures.draw("rbf", 1.0, 4, 20, torch.Generator().manual_seed(0))
    buffer = torch.empty(9, 5, dtype=torch.float64)
    part = features(x, slice(5, 10), out=buffer)
    assert part.data_ptr() == buffer.data_ptr()
    torch.testing.assert_close(part, features(x)[:, 5:10])
    torch.testing.assert_close(features(x.to_sparse()), features(x))


def test_width_rule_uses_distinct_pairs():
    x = gaussian(30)
    assert mean_sqdist_gamma(x) == pytest.approx(1 / np.mean(pdist(x.numpy(), "sqeuclidean")))
    assert mean_sqdist_gamma(x + 1e3) == pytest.approx(mean_sqdist_gamma(x))


def test_width_rule_refuses_identical_rows():
    with pytest.raises(ValueError, match="zero spread"):
        mean_sqdist_gamma(torch.ones(5, 3))
