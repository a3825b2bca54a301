"""From what native code recorded of one step to a Trace. Imports no torch."""
