"""The study: experiments over any set of models, cell by cell, so that a killed run goes on where it was."""
