"""The parts of Ebbtide's own planner. The published planners use some of them."""
