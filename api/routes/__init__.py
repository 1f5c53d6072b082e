"""The routes, one module for each thing that there is."""
