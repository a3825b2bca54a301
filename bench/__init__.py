"""What measures Ebbtide: steps, the findings of papers, long hunts for faults, and what a GPU allows."""
