"""The messages between server and sites, one file for each kind of request.

A file has up to four functions: ``write_request`` and ``read_answer`` for the server,
``read_request`` and ``write_answer`` for the site. Both sides of a format stand together.
"""
