"""The codes by which a site states why it does not answer."""

CODES = {
    "busy": "it still works on an earlier request",
    "settings": "its configuration differs from the server's",
    "limits": "the request is beyond the limits that its owner has set",
    "budget": "the release would cost more privacy than its owner allows",
    "message": "the request is damaged, or its tensors have other shapes than the site's models",
    "diverged": "its training gave NaN or infinity",
    "storage": "its disk is full or not writable",
    "failed": "it failed; its own journal states why",
}
"""Each code with its meaning, as the server prints it."""

FINAL = ("settings", "limits", "budget")
"""The codes after which a site would also refuse every other request of the same kind."""

REPEATED = (*FINAL, "message", "diverged")
"""The codes after which a site would refuse the same request again."""

ABSENT = "absent"
"""What the server notes instead of a code if a site gave no answer at all."""
