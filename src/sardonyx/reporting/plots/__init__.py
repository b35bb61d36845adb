"""Pictures of records: how they are laid out, and SVG that needs nothing else. The same numbers give the same bytes."""
