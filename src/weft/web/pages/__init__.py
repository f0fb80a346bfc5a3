"""The pages of ``weft serve``, one module each, with its ``ROUTES``."""
