"""What a script's training would need and take on this computer, without training.

The script runs on fake tensors in a process of its own (``child``). Its operators are called here, one by one, for
their times. Then budgets are planned and simulated, as ``ebbtide sweep`` does.
"""
