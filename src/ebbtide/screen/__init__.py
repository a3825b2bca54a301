"""The display of a run while it trains: a progress line in a terminal, an area in a notebook."""
