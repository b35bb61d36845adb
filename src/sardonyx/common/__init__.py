"""What every package uses: errors, complete files, temporary folders, pauses of the garbage collector."""
