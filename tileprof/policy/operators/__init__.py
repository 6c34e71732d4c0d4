"""The computations of a policy's stages, in the form that ``tileprof run`` executes: `describe` fills
``Stage.operator`` from a trace.
"""

from tileprof.policy.operators.describe import describe

__all__ = ["describe"]
