"""From plain records to what a person reads. Nothing here computes, and nothing here can change a number."""
