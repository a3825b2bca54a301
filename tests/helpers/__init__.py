"""What tests share: running children and commands, a zoo of models, and builders of data (``make_*``)."""
