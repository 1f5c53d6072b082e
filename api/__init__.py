"""The service of studies: what has been asked, what was found, what to run."""
