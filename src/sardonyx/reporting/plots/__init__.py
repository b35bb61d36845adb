"""Pictures of records as self-contained SVG files. The same record always gives the same bytes."""
