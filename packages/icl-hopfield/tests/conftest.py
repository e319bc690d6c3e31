"""Property tests have no deadline: the first call of a function compiles it."""

from hypothesis import settings

settings.register_profile("icml25", deadline=None, max_examples=30)
settings.load_profile("icml25")
