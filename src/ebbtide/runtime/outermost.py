"""Whether an ``optimizer.step`` is the outermost one, read from the call stack.

Not counted, because a step that raised would leave a count behind; and every thread has its own stack.
"""

from types import FrameType

from torch.optim import Optimizer

# Every optimizer's step runs inside this wrapper, so its frames mark the optimizer steps on a stack.
_STEP_CODE = Optimizer.profile_hook_step(lambda: None).__code__


def is_outermost(step: FrameType) -> bool:
    """``step`` is the frame that called a hook of the optimizer's step."""
    frame = step.f_back
    while frame is not None:
        if frame.f_code is _STEP_CODE:
            return False
        frame = frame.f_back
    return True
