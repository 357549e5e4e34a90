"""What a run leaves behind: `report.json` for programs, `report.html` for people."""
