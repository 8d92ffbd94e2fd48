"""What Python programs call: run scenarios, and read what is stored."""
