import os

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _quiet():
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


SMALL = {
    "vocab_size": 97,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}


def make_mamba2(**changes):
    from transformers import Mamba2Config, Mamba2ForCausalLM

    settings = SMALL | {"state_size": 8, "num_heads": 12, "head_dim": 8, "n_groups": 2, "chunk_size": 16}
    return randomized(Mamba2ForCausalLM(Mamba2Config(**settings | changes)))


def make_mamba1(**changes):
    from transformers import MambaConfig, MambaForCausalLM

    return randomized(MambaForCausalLM(MambaConfig(**SMALL | {"state_size": 8, "time_step_rank": 6} | changes)))


def randomized(model):
    """No weight at a value (0 or 1) that would hide a mistake with it."""
    with torch.no_grad():
        for block in model.backbone.layers:
            mixer = block.mixer
            block.norm.weight.uniform_(0.5, 1.5)
            mixer.D.uniform_(0.5, 1.5)
            for projection in (mixer.in_proj, mixer.out_proj):
                if projection.bias is not None:
                    projection.bias.normal_(std=0.2)
            mixer.conv1d.bias.normal_(std=0.2)
            mixer.A_log.add_(0.3 * torch.randn_like(mixer.A_log))
            if hasattr(mixer, "dt_bias"):
                mixer.dt_bias.normal_(mean=-1.0)
                mixer.norm.weight.uniform_(0.5, 1.5)
        model.backbone.norm_f.weight.uniform_(0.5, 1.5)
        model.backbone.embeddings.weight.normal_(std=0.5)
    return model.eval()


@pytest.fixture
def mamba2():
    return make_mamba2()


@pytest.fixture
def mamba1():
    return make_mamba1()


@pytest.fixture
def ids():
    return torch.randint(0, 97, (2, 40), generator=torch.Generator().manual_seed(1))


def logits(model, ids, **kwargs):
    with torch.no_grad():
        return model(ids, use_cache=False, **kwargs).logits
