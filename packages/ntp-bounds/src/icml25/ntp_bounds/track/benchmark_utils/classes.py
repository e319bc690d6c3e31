"""The class of decoders of the problem "bounds"."""

from icml25.ntp_bounds import DecoderSpec


def bounded_class(params):
    """One layer of width 16 that reads 32 tokens, with the norms of small Gaussian matrices."""
    return DecoderSpec.random(
        vocab=params["vocab"],
        dim=16,
        heads=2,
        ffn_dim=64,
        n_layers=1,
        seq_len=32,
        scale=0.5,
        seed=params["seed_of_norms"],
    )
