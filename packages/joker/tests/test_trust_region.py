import pytest
import torch

from icml25.joker import EpsilonInsensitive, Hinge, Huber, Logistic, Squared, SquaredHinge, minimise_block
from icml25.joker.trust_region import truncated_cg

LOSSES = [Squared(), Huber(0.3), EpsilonInsensitive(0.1), SquaredHinge(), Hinge(), Logistic()]


def gram(n=40, seed=0):
    x = torch.randn(n, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.exp(-(torch.cdist(x, x) ** 2) / 12)


def targets(loss, n=40, columns=3):
    y = torch.randn(n, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return y.sign() if loss.task == "classification" else y


def solve(loss, C=2.0, y=None, a=None, **options):
    K = gram()
    y = targets(loss) if y is None else y
    a = loss.start(y, C) if a is None else a
    return K, y, minimise_block(K.__matmul__, K @ a, a, y, loss, C, kkt_tol=1e-10, **options)


def objective(loss, K, y, a, C):
    return (a * (K @ a)).sum(0) / 2 + loss.conjugate(a, y, C).sum(0)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_a_block_reaches_its_minimum_in_every_column(loss):
    K, y, (a, _, _) = solve(loss, max_iter=300)
    u = K @ a
    primal = (a * u).sum(0) / 2 + 2.0 * loss.value(y, u).sum(0)
    gap = primal + objective(loss, K, y, a, 2.0)
    assert (gap.abs() <= 1e-8 * primal).all()
    for column in range(3):  # columns do not influence each other
        alone = solve(loss, y=y[:, [column]], max_iter=300)[2].a
        torch.testing.assert_close(K @ alone[:, 0], u[:, column], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_the_optimum_is_recognised_at_once(loss):
    K, y, (a, _, _) = solve(loss, max_iter=300)
    again = minimise_block(K.__matmul__, K @ a, a, y, loss, 2.0, kkt_tol=1e-8)
    assert (again.iterations, again.products) == (0, 0)
    torch.testing.assert_close(again.a, a)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_every_iteration_descends_and_stays_in_the_box(loss):
    lower, upper = loss.box(targets(loss), 2.0)
    if loss.split:
        lower = -upper
    before = torch.full((3,), torch.inf, dtype=torch.float64)
    for iterations in range(12):
        K, y, (a, _, _) = solve(loss, max_iter=iterations)
        now = objective(loss, K, y, a, 2.0)
        assert (now <= before + 1e-12).all()
        assert ((a >= lower) & (a <= upper)).all()
        before = now


def test_one_row_is_coordinate_descent():
    k, u, C = 1.3, 0.4, 2.0
    for loss, y, expected in [
        (Squared(), 0.9, (0.9 - u) / (k + 1 / C)),
        (Huber(0.1), 0.9, 0.2),  # at the bound C delta
        (SquaredHinge(), -1.0, (-1 - u) / (k + 1 / C)),
        (SquaredHinge(), 1.0, (1 - u) / (k + 1 / C)),
        (Hinge(), 1.0, (1 - u) / k),
        (Hinge(), -1.0, (-1 - u) / k),
        (EpsilonInsensitive(0.2), 0.9, (0.9 - u - 0.2) / k),
        (EpsilonInsensitive(0.7), 0.9, 0.0),  # inside the tube
    ]:
        zero = torch.zeros(1, 1, dtype=torch.float64)
        a = minimise_block(lambda v: k * v, zero + u, zero, zero + y, loss, C).a
        assert a.item() == pytest.approx(expected, abs=1e-9), loss


def test_cg_stops_on_the_sphere_and_in_the_box():
    K = gram(10)
    g = torch.linspace(-1, 1, 10, dtype=torch.float64)[:, None].repeat(1, 3)
    h, free, far = torch.full_like(g, 0.1), torch.ones_like(g, dtype=torch.bool), torch.full_like(g, 1e9)
    radius = torch.tensor([1e3, 0.5, 1e3], dtype=torch.float64)
    upper = far.clone()
    upper[:, 2] = 0.05
    s, length, products = truncated_cg(K.__matmul__, h, g, free, -far, upper, radius, 100)
    torch.testing.assert_close(s[:, 0], torch.linalg.solve(K + 0.1 * torch.eye(10), -g[:, 0]), rtol=1e-3, atol=1e-3)
    assert torch.linalg.vector_norm(s[:, 1]).item() == pytest.approx(0.5)
    torch.testing.assert_close(length, torch.linalg.vector_norm(s, dim=0))
    assert s[:, 2].max() <= 0.05
    assert products > 3
    frozen = free.clone()
    frozen[4] = False
    assert truncated_cg(K.__matmul__, h, g, frozen, -far, far, radius, 100)[0][4].abs().max() == 0


def test_negative_curvature_goes_to_the_sphere():
    g = torch.ones(4, 1, dtype=torch.float64)
    far = torch.full_like(g, 1e9)
    s, _, _ = truncated_cg(lambda v: -v, 0 * g, g, g > 0, -far, far, torch.tensor([3.0], dtype=torch.float64), 10)
    torch.testing.assert_close(s, torch.full_like(g, -1.5))


@pytest.mark.parametrize("loss", [SquaredHinge(), Hinge()], ids=["squared_hinge", "hinge"])
def test_freezing_active_bounds_saves_iterations_and_not_the_answer(loss):
    x = torch.randn(100, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    K, y = torch.exp(-(torch.cdist(x, x) ** 2) / 12), x[:, :1].sign()
    zero = torch.zeros_like(y)
    runs = [
        minimise_block(K.__matmul__, zero, zero, y, loss, 10.0, max_iter=2000, kkt_tol=1e-4, freeze_active=freeze)
        for freeze in (True, False)
    ]
    assert 3 * runs[0].iterations < runs[1].iterations
    values = [objective(loss, K, y, run.a, 10.0) for run in runs]
    torch.testing.assert_close(values[0], values[1], rtol=1e-3, atol=0.0)
