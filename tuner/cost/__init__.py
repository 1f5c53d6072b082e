"""Prices configurations by plain arithmetic: memory and time of one optimizer step."""
