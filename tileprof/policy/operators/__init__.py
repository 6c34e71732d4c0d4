"""What the stages of a policy compute, in the form that ``tileprof run`` executes: `describe` fills ``Stage.operator``
from a trace.
"""

from tileprof.policy.operators.describe import describe

__all__ = ["describe"]
