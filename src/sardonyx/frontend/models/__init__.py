"""Where a module comes from: a hub, a config, a catalogue or a function, and which weights it has."""
