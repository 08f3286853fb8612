"""Rows of data: reading them, making items of them, and splitting the items. The kinds of data are in `data`."""
