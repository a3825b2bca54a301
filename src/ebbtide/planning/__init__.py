"""Plans beside the steps: a recorded step goes to a process that plans, and the arena gets the answer."""
