"""What measures Ebbtide: steps, the findings of papers, and long hunts for faults."""
