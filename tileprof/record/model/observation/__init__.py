"""How a running program is seen: its operators, modules and ranges, and which of its launches are kept."""
