"""Studies: experiments over any set of models, in cells that are stored, so that a killed study can continue."""
