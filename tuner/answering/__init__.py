"""From a question to its answer, as far as no worker is needed: what is known, and in words."""
