"""Object storage: a bucket's prefix or a folder, in which objects are written whole or not at all."""
