"""What Ebbtide's own planner is made of; the published planners use parts of it."""
