"""Views: one module for each thing to show, which makes its tables and documents."""
