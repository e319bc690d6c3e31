"""Algorithms 1 and 2 of the paper: one block of the dual by a trust region in a box, all columns at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from icml25.joker.losses import Loss, Matrix, Scalar

Row = Float[Tensor, " columns"]
Product = Callable[[Tensor], Tensor]


class BlockSolution(NamedTuple):
    """Answer of :func:`minimise_block`: the minimiser, and trust-region iterations and products summed over columns."""

    a: Tensor
    iterations: int
    products: int


def minimise_block(
    product: Product,
    u: Matrix,
    a: Matrix,
    y: Matrix,
    loss: Loss,
    C: Scalar,
    *,
    kkt_tol: Scalar = 1e-6,
    reduction: Scalar = 0.0,
    max_radius: Scalar = 64.0,
    max_iter: int = 50,
    max_cg_iter: int = 100,
    freeze_active: bool = True,
) -> BlockSolution:
    """Minimise the dual over one block, J_B(a') = (a'-a)^T K (a'-a) / 2 + u^T (a'-a) + sum f(a') (Alg. 1).

    Args:
        product: maps (rows, k) to K_BB times it.
        u: decision values of the block's rows at ``a``, (rows, columns).
        a: feasible starting point, (rows, columns).
        y: targets, (rows, columns).
        loss: the loss; its box bounds the answer.
        C: weight of the loss.
        kkt_tol: stop a column when its projected gradient is at most this.
        reduction: stop it also when that has fallen to this share of where it began; CG's residual likewise.
        max_radius: cap of the trust radius, in units of ``a``; the first radius is a quarter of it.
        max_iter: trust-region iterations at most.
        max_cg_iter: conjugate-gradient iterations at most in each.
        freeze_active: hold coordinates at an active bound during CG; False is the paper's plain clipping, kept to
            measure what this saves.

    Returns:
        The block's new coordinates with the work done.
    """
    rows = len(a)
    if loss.split:
        product = _on_halves(product, rows)
        a, y, u = torch.cat([a.clamp_min(0), (-a).clamp_min(0)]), torch.cat([y, -y]), torch.cat([u, -u])
    lo, hi = loss.box(y, C)
    answer = a.clone()
    live = torch.arange(a.shape[1], device=a.device)
    radius = a.new_full((a.shape[1],), max_radius / 4)
    enough, stalled = torch.zeros_like(radius), torch.zeros_like(live, dtype=torch.bool)
    iterations = products = 0
    for iteration in range(max_iter + 1):
        g = loss.gradient(a, y, C) + u
        free = ~(((a <= lo) & (g > 0)) | ((a >= hi) & (g < 0)))
        slope = torch.where(free, g, 0.0).abs().amax(0)
        if iteration == 0:
            enough = (reduction * slope).clamp_min(kkt_tol)
        stop = stalled | (slope <= enough)
        if iteration == max_iter or stop.all():
            break
        if stop.any():
            answer[:, live] = a
            state = (live, a, u, y, lo, hi, g, free, radius, enough)
            live, a, u, y, lo, hi, g, free, radius, enough = (t[..., ~stop] for t in state)
        h = loss.curvature(a, y, C)
        inner = free if freeze_active else torch.ones_like(free)
        s, length, cg_products = truncated_cg(
            product, h, g, inner, lo - a, hi - a, radius, max_cg_iter, max(1e-4, reduction), freeze_active
        )
        Ks = product(s)
        iterations += len(live)
        products += cg_products + len(live)
        # Written with f(a+s) - f(a) - f'(a) s, both decreases keep their digits near the optimum.
        linear_and_kernel = (g * s + s * Ks / 2).sum(0)
        predicted = linear_and_kernel + (h * s * s).sum(0) / 2
        actual = linear_and_kernel + loss.bregman(a, s, y, C).sum(0)
        rho = actual / predicted
        accept = (actual < 0) & (rho > 0.125)
        grow = (rho > 0.75) & (length >= 0.999 * radius)
        shrink = torch.where(actual >= 0, 0.25, torch.where(rho < 0.25, 0.5, 1.0))
        radius = torch.where(accept & grow, (2 * radius).clamp_max(max_radius), radius * shrink)
        scale = (loss.conjugate(a, y, C).abs() + (u * a).abs()).sum(0)
        stalled = (predicted.abs() <= 1e-12 * scale) | (radius < 1e-12 * max_radius)
        moved = torch.where(s <= lo - a, lo, torch.where(s >= hi - a, hi, a + s))
        a = torch.where(accept, moved, a)
        u = torch.where(accept, u + Ks, u)
    answer[:, live] = a
    if loss.split:
        answer = answer[:rows] - answer[rows:]
    return BlockSolution(answer, iterations, products)


def _on_halves(product: Product, rows: int) -> Product:
    """Return the product with [[K, -K], [-K, K]], by one with K."""

    def on_halves(v: Tensor) -> Tensor:
        k = product(v[:rows] - v[rows:])
        return torch.cat([k, -k])

    return on_halves


def truncated_cg(
    product: Product,
    h: Matrix,
    g: Matrix,
    free: Bool[Tensor, "rows columns"],
    lo: Matrix,
    hi: Matrix,
    radius: Row,
    max_iter: int,
    tol: Scalar = 1e-4,
    follow_box: bool = True,
) -> tuple[Matrix, Row, int]:
    """Minimise g^T s + s^T (K + diag h) s / 2 within the radius and the box, by Steihaug's CG (Alg. 2).

    A column ends on the sphere or at a relative residual of ``tol``. Coordinates that a CG step takes out of the box
    stop at its wall, and CG starts again on the others; with ``follow_box=False`` the step is clipped and the column
    ends, as in the paper. Curvature that varies over the rows is preconditioned by D = (1 + h) / (1 + min h), and the sphere is
    ||s||_D = radius; a constant h gives D = 1, which is plain CG.

    Returns:
        The step (rows, columns), zero off the free set; its length ||s||_D; products, counted by column.
    """
    D = (1 + h) / (1 + h.amin(0)) if follow_box else torch.ones_like(h)
    r = torch.where(free, -g, 0.0)
    p, d = torch.zeros_like(g), r / D
    rz = (r * d).sum(0)
    target = tol**2 * rz
    running = rz > 0
    products = 0
    for _ in range(max_iter):
        products += int(running.sum())
        Qd = torch.where(free, product(d) + h * d, 0.0)
        dQd = (d * Qd).sum(0)
        step = rz / dQd
        ahead = p + step * d
        outside = (dQd <= 0) | ((D * ahead * ahead).sum(0) > radius**2)
        if outside.any():
            dd, pd, room = (D * d * d).sum(0), (D * p * d).sum(0), radius**2 - (D * p * p).sum(0)
            to_sphere = room / (pd + (pd * pd + dd * room).clamp_min(0).sqrt())
            step = torch.where(outside, to_sphere, step)
        step = torch.where(running, step, 0.0)
        p, r = torch.addcmul(p, step, d), torch.addcmul(r, step, Qd, value=-1)
        crossed = (p < lo) | (p > hi)
        hit_wall = crossed.any(0)
        running = running & ~outside
        if hit_wall.any():
            p = torch.minimum(torch.maximum(p, lo), hi)
            if not follow_box:
                running = running & ~hit_wall
            if not running.any():
                break
            free = free & ~crossed
            r = torch.where(free, -g - product(p) - h * p, 0.0)
            products += int(running.sum())
        z = r / D
        rz_next = (r * z).sum(0)
        running = running & (rz_next > target)
        if not running.any():
            break
        d = torch.where(running, z + torch.where(hit_wall, 0.0, rz_next / rz) * torch.where(free, d, 0.0), 0.0)
        rz = rz_next
    return p, (D * p * p).sum(0).sqrt(), products
