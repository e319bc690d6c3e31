"""Train the decoder with a baseline's positions, and read: what every baseline's process runs."""

from benchmark_utils import positions
from benchmark_utils.decoder import SIZES, read, train, warm_up

__all__ = ["fit", "warm_up"]


def fit(arrays, params):
    """Losses and answers of the decoder with the positions that ``params["position"]`` names.

    ``params["readings"]`` are further ways to read the same weights beyond the training length.
    """
    width, heads, *_ = SIZES[params["size"]]
    dim, length, name = width // heads, params["length"], params["position"]
    position = {
        "rope": lambda: positions.RoPE(dim, length),
        "rope-a": lambda: positions.AlignedRoPE(dim, length),
        "nope": positions.NoPE,
        "alibi": lambda: positions.ALiBi(heads),
        "kerple": lambda: positions.Kerple(heads),
        "fire": lambda: positions.Fire(heads, length),
    }[name]()
    model = train(position, arrays, params)
    found = read(model, arrays)
    beyond = {key: value for key, value in arrays.items() if key.startswith("test_") and value.shape[1] > length}
    for reading in params["readings"]:
        position.reading = reading
        found |= {f"{key}_{reading}": value for key, value in read(model, beyond).items()}
    return found
