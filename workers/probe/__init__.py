"""The probe program: a few real optimizer steps of a model under given settings, on every rank."""
