"""Train the decoder with a baseline's positions, and read: what every baseline's process runs."""

from benchmark_utils import positions
from benchmark_utils.decoder import SIZES, train_and_read, warm_up

__all__ = ["fit", "warm_up"]


def fit(arrays, params):
    """Losses and answers of the decoder with the positions that ``params["position"]`` names."""
    width, heads, *_ = SIZES[params["budget"]]
    dim, length, name = width // heads, params["length"], params["position"]
    position = {
        "rope": lambda: positions.RoPE(dim, length, params["reading"]),
        "rope-a": lambda: positions.AlignedRoPE(dim, length),
        "nope": positions.NoPE,
        "alibi": lambda: positions.ALiBi(heads),
        "kerple": lambda: positions.Kerple(heads),
        "fire": lambda: positions.Fire(heads, length),
    }[name]()
    return train_and_read(position, arrays, params)
