"""A results folder in a browser: what is read for each page, and the server that sends it; it writes nothing.

`static/` holds the page itself: HTML, CSS and JavaScript without a build step, and two kept libraries for figures.
"""
