"""What a module is run on: example inputs, the dims that may change, and what the user says of both."""
