"""Float models of the track: made once per seed in a measured process, kept as folders of transformers."""

import functools
import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np

ROWS, LENGTH, CALIBRATION = 8, 192, 16
TESTED = 32  # rows of held-out text
HELD_OUT, VOCABULARY = 0.1, 256


@functools.cache
def tokens_of(text):
    """Bytes of the text's documents as uint8."""
    from icml25.shared import datasets

    names = ("stdlib", "sklearn_descriptions") if text == "stdlib" else (text,)
    return np.frombuffer("\n\n".join(datasets.load(name).text for name in names).encode(), dtype=np.uint8)


def windows(tokens, count, rng):
    """(count, LENGTH) windows at random starts."""
    starts = rng.integers(0, len(tokens) - LENGTH, count)
    return tokens[starts[:, None] + np.arange(LENGTH)].astype(np.int64)


def draw_arrays(settings, seed):
    """Training tokens, and windows for calibration, validation and test."""
    rng = np.random.default_rng([seed, 1])
    if settings["problem"] == "bytes":
        tokens = tokens_of(settings["text"])
        cut = round(len(tokens) * (1 - HELD_OUT))
        train = tokens[:cut]
        inside = {"calibration": windows(train, CALIBRATION, rng), "validation": windows(train, ROWS, rng)}
        return {"train": train, **inside, "held_out": windows(tokens[cut:], TESTED, rng)}
    rows = {"calibration": ROWS, "validation": ROWS // 2, "held_out": ROWS}
    return {name: rng.integers(0, VOCABULARY, (count, 128)) for name, count in rows.items()}


def prepare(settings, seed, measure):
    """Folders of the float models by kind, arrays of tokens and the float models' outputs, from the cache or made now.

    ``measure`` runs ``make`` of this file in a process of its own.
    """
    from icml25.shared.engine import cache_folder

    key = json.dumps([settings, int(seed)], sort_keys=True) + Path(__file__).read_text()
    folder = cache_folder() / "lm-efficiency-models" / hashlib.sha256(key.encode()).hexdigest()[:16]
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = folder.with_name(f"{folder.name}-{os.getpid()}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        arrays = draw_arrays(settings, seed)
        params = {**settings, "seed": int(seed), "folder": str(partial)}
        outputs = measure(__file__, "make", arrays, params)
        arrays.pop("train", None)
        np.savez(partial / "arrays.npz", **arrays, **{f"float_{k}": np.asarray(v) for k, v in outputs.items()})
        try:
            partial.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(partial)
    with np.load(folder / "arrays.npz") as stored:
        arrays = {name: stored[name] for name in stored}
    truth = {name.removeprefix("float_"): arrays.pop(name) for name in list(arrays) if name.startswith("float_")}
    models = {path.name: sorted(map(str, path.iterdir())) for path in sorted(folder.iterdir()) if path.is_dir()}
    return models, arrays, truth


def make(arrays, params):
    """Make the models of a problem, save them, and return what the float models give out."""
    import torch

    torch.set_num_threads(1)  # small matrices: more threads only wait for each other on a busy machine
    torch.manual_seed(params["seed"])
    if params["problem"] == "bytes":
        compared = [trained(params["arch"], arrays["train"], params["steps"], params["seed"])]
        models = {"trained": compared}
    else:
        compared = [profiled_mamba2(1000 * params["seed"] + i) for i in range(params["draws"])]
        small = [random_model(arch, VOCABULARY, width=48, blocks=2) for arch in ("mamba1", "mamba2")]
        wide = random_model("mamba2", 4096, width=512, blocks=8, head_dim=64, state_size=64)
        models = {"profiled": compared, "small": small, "wide": [wide]}
    for kind, members in models.items():
        for i, model in enumerate(members):
            model.save_pretrained(Path(params["folder"]) / kind / str(i))
    out = {"parameters": list(models.values())[-1][0].num_parameters()}  # of the model whose bytes are counted
    for name in ("held_out", "validation"):
        ids = torch.from_numpy(arrays[name])
        with torch.no_grad():
            out[name] = np.stack([model(ids, use_cache=False).logits.numpy() for model in compared])
    return out


def random_model(arch, vocab_size, width, blocks, head_dim=16, state_size=32, n_groups=2):
    """A random model of transformers, whose weights come from torch's generator."""
    from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM

    settings = {
        "vocab_size": vocab_size,
        "hidden_size": width,
        "num_hidden_layers": blocks,
        "bos_token_id": 0,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    if arch == "mamba1":
        return MambaForCausalLM(MambaConfig(state_size=16, **settings)).eval()
    heads = {"num_heads": 2 * width // head_dim, "head_dim": head_dim}
    config = Mamba2Config(state_size=state_size, n_groups=n_groups, chunk_size=64, **heads, **settings)
    return Mamba2ForCausalLM(config).eval()


def trained(arch, tokens, steps, seed, batch=8, rate=5e-3):
    """A byte-level model of four blocks of width 128, trained by AdamW with warm-up and cosine decay."""
    import torch

    from icml25.quamba2 import fast_scan

    model = random_model(arch, 256, 128, 4).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=max(steps, 2), pct_start=0.1)
    rng = np.random.default_rng([seed, 2])
    with fast_scan(model):
        for _ in range(steps):
            ids = torch.from_numpy(windows(tokens, batch, rng)[:, : LENGTH // 2])
            loss = model(ids, labels=ids, use_cache=False).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return model.eval()


def profiled_mamba2(seed, blocks=8):
    """A random Mamba2 whose activations after convolution and SiLU have persistent sizes, while its weights are ordinary.

    Channels of x have lognormal gains (1.2; heads 0.8), and the SSD groups of B the scales 1, .01, 5, .2; those of C are
    the same in reverse, so that their products, which D follows, are alike. All come from the convolution's biases. The
    gated norm's weights are the inverse of the gains, so that small channels matter. The exponents of a block are
    multiplied by a uniform factor in .5..1.5, so that blocks differ in how hard they are.
    """
    import torch

    torch.manual_seed(seed)
    model = random_model("mamba2", VOCABULARY, 64, blocks, head_dim=8, state_size=16, n_groups=4)
    generator = torch.Generator().manual_seed(seed)
    spreads = 0.5 + torch.rand(blocks, generator=generator)
    with torch.no_grad():
        model.lm_head.weight = torch.nn.Parameter(torch.randn(VOCABULARY, 64, generator=generator) / 8)
        model.config.tie_word_embeddings = False
        model.backbone.embeddings.weight.copy_(torch.randn(VOCABULARY, 64, generator=generator))
        for block, spread in zip(model.backbone.layers, spreads, strict=True):
            mixer = block.mixer
            heads, width, groups = mixer.num_heads, mixer.head_dim, mixer.n_groups
            gains = 1.2 * torch.randn(heads, width, generator=generator)
            gains = (gains + 0.8 * torch.randn(heads, 1, generator=generator)).mul(spread).exp()
            of_B = torch.tensor([1.0, 0.01, 5.0, 0.2]).pow(spread)
            of_C = of_B.flip(0)
            states = torch.cat([of_B, of_C]).repeat_interleave(mixer.ssm_state_size)
            mixer.conv1d.bias.copy_(before_silu(torch.cat([gains.flatten(), states])))
            mixer.D.copy_((of_B * of_C).repeat_interleave(heads // groups))
            gains = gains.view(groups, -1)  # the gated norm divides by the root mean square of each group
            mixer.norm.weight.copy_((gains.square().mean(1, keepdim=True).sqrt() / gains).flatten())
    return model


def before_silu(size):
    """b with |SiLU(b)| = size: b > 0, or for sizes below .2 b < -2.4, where SiLU is about b exp(b)."""
    import torch

    high, low, small = size, torch.full_like(size, -4), size.clamp(max=0.2)
    for _ in range(60):  # fixed points of b = size (1 + exp(-b)) and of exp(-b) = -b / size - 1
        high, low = size * (1 + torch.exp(-high)), -torch.log(-low / small - 1)
    return torch.where(size < 0.2, low, high)
