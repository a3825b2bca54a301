"""What the tests' server of planning processes imports before it forks any."""

import gc

import highspy  # noqa: F401 (for the solvers that small steps are planned by)

import ebbtide.planning.plan_process  # noqa: F401

gc.collect()
gc.freeze()
