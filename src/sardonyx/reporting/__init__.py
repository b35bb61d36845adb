"""Views of records: documents, the report page, plots and viewer formats. Nothing here computes or changes a number."""
