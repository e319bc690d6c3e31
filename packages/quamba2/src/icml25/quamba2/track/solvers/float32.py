"""The float model itself, as transformers runs it."""

from benchmark_utils.solver import BaselineSolver


def warm_up():
    """Load what the clock should not see."""
    from transformers import Mamba2ForCausalLM  # noqa: F401


def evaluated(arrays, params):
    """Outputs of the model as it is."""
    from benchmark_utils.evaluation import evaluate, float_model

    out = evaluate(float_model(params["models"]["trained"][0]), arrays["held_out"])
    return out | {"float_state_bytes": out["state_bytes"]}


class Solver(BaselineSolver):
    """The float model itself, as transformers runs it."""

    name = "float32"
    file = __file__
