"""Code generated from protos/tidegate/v1 by `make generate`; never edited by hand."""
