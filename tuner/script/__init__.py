"""The user's own training script: how it is told the settings, launched, and what it can vary.

Its command is a template (:mod:`tuner.script.placeholders`) that is part of a question
(:mod:`tuner.script.script`); a knob that the template names nowhere has one value
(:mod:`tuner.script.pinned`); with settings it is a command that runs (:mod:`tuner.script.command`).
"""

from tuner.script.script import Launch, Script, Template

__all__ = ["Launch", "Script", "Template"]
