"""Makes data of a study and its answer for pages and any other reader.

Everything here is a pure function of a study, or of an :class:`Evidence` of it that several of them
share. Quantities keep their interval and where they come from.
"""
