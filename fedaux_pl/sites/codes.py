"""The codes by which a site says why it does not answer."""

CODES = {
    "busy": "it still works on an earlier request",
    "settings": "its configuration differs from the server's",
    "limits": "the request is beyond the limits that it has set itself",
    "budget": "the release would cost more privacy than it allows",
    "message": "the request is damaged, or of other shapes than its models",
    "diverged": "its training gave NaN or infinity",
    "storage": "its disk is full or not writable",
    "failed": "it failed; its own log says why",
}
"""Why a site does not answer."""

FINAL = ("settings", "limits", "budget")  # asking for anything like it gives the same answer
REPEATED = (*FINAL, "message", "diverged")  # asking for the same does
