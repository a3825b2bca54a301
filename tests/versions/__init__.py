"""`make versions`: builds against each torch that Ebbtide is for, and a quick suite there."""
