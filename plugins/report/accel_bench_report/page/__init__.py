"""The page about stored results, as HTML and as Markdown."""
