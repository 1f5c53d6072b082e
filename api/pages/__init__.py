"""The results pages: what a browser shows of studies, made on the server."""
