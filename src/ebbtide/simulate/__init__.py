"""The virtual clock: what a schedule would do on a machine. Planners predict time with it; nothing here imports torch.

``links`` moves bytes, ``engine`` runs the step, ``result`` is what comes out.
"""

from ebbtide.simulate.engine import simulate
from ebbtide.simulate.result import Outcome

__all__ = ["Outcome", "simulate"]
