"""torch's dynamic quantization: int8 weights of the blocks' linear layers, activations scaled at run time."""

from benchmark_utils.solver import BaselineSolver


def warm_up():
    """Load what the clock should not see."""
    from transformers import Mamba2ForCausalLM  # noqa: F401


def evaluated(arrays, params):
    """Outputs with the blocks' linear layers in int8, one scale per output channel; the tied head stays float."""
    import warnings

    import torch
    from benchmark_utils.evaluation import DECODED, evaluate, float_model, tensor_bytes
    from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic

    model = float_model(params["models"]["trained"][0])
    with torch.inference_mode():
        float_states = tensor_bytes(model(torch.from_numpy(arrays["held_out"][:DECODED, :128]), use_cache=True).cache)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao is deprecated, and still the only one that comes with torch
        quantize_dynamic(
            model.backbone, {torch.nn.Linear: per_channel_dynamic_qconfig}, dtype=torch.qint8, inplace=True
        )
    linears = [m for m in model.modules() if isinstance(m, torch.ao.nn.quantized.dynamic.Linear)]
    size = sum(p.nbytes for p in model.parameters())
    size += sum(m.weight().numel() + m.weight().q_per_channel_scales().nbytes for m in linears)
    return evaluate(model, arrays["held_out"], size) | {"float_state_bytes": float_states}


class Solver(BaselineSolver):
    """torch's dynamic quantization: int8 weights of the blocks' linear layers, activations scaled at run time."""

    name = "dynamic int8"
    file = __file__
