"""Published figures as data files: models, GPU kinds, and what versions of the frameworks do."""
