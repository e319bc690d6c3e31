"""Property tests have no deadline: the first call of a tensor function may take long on a busy machine."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import settings

settings.register_profile("icml25", deadline=None)
settings.load_profile("icml25")


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Any]:
    """Builds a small random model of a transformers class, always with the same weights."""
    import transformers

    def build(family: str = "Llama", **settings: Any) -> Any:
        sizes = {
            "vocab_size": 97,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
        if family == "Qwen3":
            sizes["head_dim"] = 16
        config = getattr(transformers, f"{family}Config")(**(sizes | settings))
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = getattr(transformers, f"{family}ForCausalLM")(config)
            for name, weight in model.named_parameters():  # large enough for attention to matter
                if "proj" in name and weight.ndim == 2:
                    torch.nn.init.normal_(weight, std=0.15)
        return model.eval()

    return build


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(3, 97, (2, 40), generator=torch.Generator().manual_seed(1))
