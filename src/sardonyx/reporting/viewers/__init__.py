"""Records in the formats of other programs: graph viewers, trace viewers, Mermaid."""
