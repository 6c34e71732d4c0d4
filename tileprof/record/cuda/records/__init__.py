"""What the injection library leaves behind: its event log and records, and which launch and tile each belongs to."""
