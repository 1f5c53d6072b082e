"""The user's own training script: how it is told the settings, launched, and what it can vary.

Its command is a template (:mod:`tuner.core.script`) that is part of a question
(:mod:`tuner.core.script`); a knob that the template names nowhere has one value
(:mod:`tuner.core.script`); with settings it is a command that runs (:mod:`tuner.script.launching`).
"""

from tuner.core.script import Launch, Script, Template

__all__ = ["Launch", "Script", "Template"]
