"""Property tests have no deadline: the machine may be busy."""

from hypothesis import settings

settings.register_profile("icml25", deadline=None)
settings.load_profile("icml25")
