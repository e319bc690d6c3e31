"""The quantized Mamba mixer."""

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .blocks import QuambaMixer, make_projection
from .cache import QuantizedStateCache
from .config import QuambaConfig
from .scan import selective_scan, selective_step

__all__ = ["QuambaMamba1Mixer"]


class QuambaMamba1Mixer(QuambaMixer):
    """in_proj -> x, z -> convolution and SiLU of x -> x_proj, dt_proj -> selective scan -> gate -> rotation -> out_proj.

    Integers between all of these but the scan and the gate, unless ``a16``. There are no heads, so x has one scale, from
    a percentile.
    """

    projections = ("in_proj", "x_proj", "dt_proj", "out_proj")
    A_log: Tensor
    D: Tensor
    dt_bias: Tensor
    scale_x: Tensor
    scale_z: Tensor
    scale_dt_low: Tensor
    scale_B: Tensor
    scale_C: Tensor
    scale_dt: Tensor

    def __init__(self, layer: int, dims: SimpleNamespace, config: QuambaConfig, n_x: int) -> None:
        d, rank, states = dims.intermediate_size, dims.time_step_rank, dims.state_size
        scales: dict[str, tuple[int, ...]] = dict.fromkeys(("x", "z", "dt_low", "B", "C", "dt"), ())
        super().__init__(layer, dims, config, n_x, d, scales)
        self.in_proj = make_projection(config, dims.hidden_size, 2 * d, dims.use_bias)
        self.x_proj = make_projection(config, d, rank + 2 * states)
        self.dt_proj = make_projection(config, rank, d)
        self.out_proj = make_projection(config, d, dims.hidden_size, dims.use_bias)
        self._own("A_log", (d, states))
        for name in ("D", "dt_bias"):
            self._own(name, (d,))

    def load_float_(self, mixer: Any) -> None:
        """Take over what stays float32."""
        self._fill(A_log=mixer.A_log, D=mixer.D, dt_bias=mixer.dt_proj.bias)

    def forward(
        self,
        hidden: Float[Tensor, "b l d"],
        cache: QuantizedStateCache | None = None,
        mask: Float[Tensor, "b l 1"] | None = None,
    ) -> Float[Tensor, "b l d"]:
        """Outputs of normed inputs; ``mask`` is 0 at padding."""
        d, sizes = self.dims.intermediate_size, (self.dims.time_step_rank, *(self.dims.state_size,) * 2)
        scale = None if self.a16 else torch.cat([self.scale_x.expand(d), self.scale_z.expand(d)])
        x, z = self._project_in(hidden, scale).split(d, -1)
        if scale is not None:
            z = z * self.scale_z
        x = self._convolve(x, None if scale is None else self.scale_x.expand(d), cache)
        if mask is not None:
            x = x * mask
        if self.a16:
            x = x.to(hidden.dtype)
            low, B, C = self.x_proj.floating(x).split(sizes, -1)
            dt = self.dt_proj.floating(low)
        else:
            of_x = self._of_channels(self.scale_conv_x)
            x = self._quantize(x, of_x)
            after = zip((self.scale_dt_low, self.scale_B, self.scale_C), sizes, strict=True)
            of_low = torch.cat([s.expand(n) for s, n in after])
            low = self._quantize(self.x_proj.integer(x, self.scale_conv_x[0]), of_low)
            dt = self._quantize(self.dt_proj.integer(low[..., : sizes[0]], self.scale_dt_low), self.scale_dt)
            dt, x = dt * self.scale_dt, x * of_x
            _, B, C = (low * of_low).split(sizes, -1)
        dt = F.softplus(dt.float() + self.dt_bias)
        A, past = -self.A_log.exp(), self._past_state(cache)
        if hidden.shape[1] == 1 and past is not None:
            x, B, C = x.float(), B.float(), C.float()
            y, state = selective_step(past, x[:, 0], dt[:, 0], A, B[:, 0], C[:, 0], self.D)
            y = y[:, None]
        else:
            y, state = selective_scan(x, dt, A, B, C, self.D, initial_state=past)
        self._keep_state(cache, state)
        return self._project_out(y * F.silu(z.float()), hidden.dtype)
