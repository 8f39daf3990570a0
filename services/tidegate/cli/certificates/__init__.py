"""``tidegate certificates``: an authority and the certificates of a release, issued by openssl."""
