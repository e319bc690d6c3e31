"""The quantized Mamba2 mixer."""

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .blocks import QuambaMixer, make_projection, rms_norm
from .cache import QuantizedStateCache
from .config import QuambaConfig
from .scan import ssd_chunk_scan, ssd_step

__all__ = ["QuambaMamba2Mixer"]


class QuambaMamba2Mixer(QuambaMixer):
    """in_proj -> z, x, B, C, dt -> convolution and SiLU of x, B, C -> SSD -> gated norm -> rotation -> out_proj.

    Integers between all of these but SSD and norm, unless ``a16`` (Step 4 of the method).
    """

    projections = ("in_proj", "out_proj")
    A_log: Tensor
    D: Tensor
    dt_bias: Tensor
    norm_weight: Tensor
    scale_z: Tensor
    scale_x: Tensor
    scale_B: Tensor
    scale_C: Tensor
    scale_dt: Tensor
    scale_conv_B: Tensor
    scale_conv_C: Tensor

    def __init__(self, layer: int, dims: SimpleNamespace, config: QuambaConfig, n_x: int) -> None:
        states = dims.n_groups * dims.state_size
        self.sizes = (dims.intermediate_size, dims.intermediate_size + 2 * states, dims.num_heads)
        groups = (dims.n_groups if config.per_state_group else 1,)
        scales: dict[str, tuple[int, ...]] = dict.fromkeys(("z", "x", "B", "C", "dt"), ())
        super().__init__(layer, dims, config, n_x, self.sizes[1], scales | {"conv_B": groups, "conv_C": groups})
        self.in_proj = make_projection(config, dims.hidden_size, sum(self.sizes), dims.use_bias)
        self.out_proj = make_projection(config, dims.intermediate_size, dims.hidden_size, dims.use_bias)
        for name in ("A_log", "D", "dt_bias"):
            self._own(name, (dims.num_heads,))
        self._own("norm_weight", (dims.intermediate_size,))

    def load_float_(self, mixer: Any) -> None:
        """Take over what stays float32."""
        self._fill(A_log=mixer.A_log, D=mixer.D, dt_bias=mixer.dt_bias, norm_weight=mixer.norm.weight)

    def _projection_scale(self) -> Float[Tensor, "p"]:
        scalars = (self.scale_z, self.scale_x, self.scale_B, self.scale_C, self.scale_dt)
        d, states = self.dims.intermediate_size, self.dims.n_groups * self.dims.state_size
        counts = (d, d, states, states, self.dims.num_heads)
        return torch.cat([scale.expand(n) for scale, n in zip(scalars, counts, strict=True)])

    def _convolved_scale(self) -> Float[Tensor, "c"]:
        states = self.dims.n_groups * self.dims.state_size
        groups = [s.repeat_interleave(states // len(s)) for s in (self.scale_conv_B, self.scale_conv_C)]
        return torch.cat([self._of_channels(self.scale_conv_x), *groups])

    def forward(
        self,
        hidden: Float[Tensor, "b l d"],
        cache: QuantizedStateCache | None = None,
        mask: Float[Tensor, "b l 1"] | None = None,
    ) -> Float[Tensor, "b l d"]:
        """Outputs of normed inputs; ``mask`` is 0 at padding."""
        dims = self.dims
        batch, length, _ = hidden.shape
        scale = None if self.a16 else self._projection_scale()
        z, x, dt = self._project_in(hidden, scale).split(self.sizes, -1)
        of_conv = None
        if scale is not None:
            of_z, of_conv, of_dt = scale.split(self.sizes)
            z, dt = z * of_z, dt * of_dt
        x = self._convolve(x, of_conv, cache)
        if mask is not None:
            x = x * mask
        if scale is not None:
            after = self._convolved_scale()
            x = self._quantize(x, after) * after
        states = dims.n_groups * dims.state_size
        x, B, C = x.split([dims.intermediate_size, states, states], -1)
        x = x.reshape(batch, length, dims.num_heads, dims.head_dim)
        B, C = (v.reshape(batch, length, dims.n_groups, dims.state_size) for v in (B, C))
        dt = F.softplus(dt.float() + self.dt_bias).clamp(*dims.time_step_limit)
        A, past = -self.A_log.exp(), self._past_state(cache)
        if length == 1 and past is not None:
            y, state = ssd_step(past, x[:, 0], dt[:, 0], A, B[:, 0], C[:, 0], self.D)
        else:
            y, state = ssd_chunk_scan(x, dt, A, B, C, self.D, initial_state=past)
        self._keep_state(cache, state)
        y = y.reshape(batch, length, -1) * F.silu(z.float())
        y = rms_norm(y, self.norm_weight, dims.layer_norm_epsilon, dims.norm_group_size)
        return self._project_out(y, hidden.dtype)
