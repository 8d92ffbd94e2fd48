"""Views: tables and documents of each kind of output, one module each."""
