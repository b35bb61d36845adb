"""Writers: a document as text for a terminal, as Markdown, as HTML; rows as CSV. Each escapes names in one place."""
