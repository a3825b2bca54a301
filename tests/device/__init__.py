"""An accelerator of the tests' own, for machines without one."""
