"""The words of the product: what is asked, tried, measured and answered, each defined once."""
