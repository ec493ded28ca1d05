"""What a site answers, one file for each kind of request.

Every handler is a small class that gets the values it needs: no handler knows another one or the
federation as a whole. ``Site`` makes the table from kinds of requests to handlers.
"""
