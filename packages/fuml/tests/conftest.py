"""Property tests have no deadline: the first call of a tensor function may take long on a busy machine."""

from hypothesis import settings

settings.register_profile("icml25", deadline=None)
settings.load_profile("icml25")
