"""The probe program: a few real optimizer steps of one configuration, on every rank."""
