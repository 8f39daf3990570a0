"""``tidegate evaluate``: a version answers problems once its run has published it."""
