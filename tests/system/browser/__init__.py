"""The pages in a real browser, Chromium, with real servers behind them.

It is a package, so that its fixtures end with it: Playwright keeps an event loop in this thread,
and no other test of the process could run one of its own.
"""
