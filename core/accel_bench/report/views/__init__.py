"""Views: functions that turn results into a report, one module for each kind of output."""
