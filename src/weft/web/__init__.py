"""Pages: results as HTML, frozen into a file (``weft report``) or served (``weft serve``)."""
